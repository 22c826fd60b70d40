#!/usr/bin/env bash
# 4. Speed of this project's training loop and of timm's, then the effect of each optimization.
source "$(dirname "$0")/bootstrap.sh"
keep . 'train-speed/train_speed.json' 'optimizations/optimizations*'
remember 'done/train-speed*' 'train-speed/train_speed.json' \
    'optimizations/machine.json' 'optimizations/*/run.json'

if [[ $TINY == 1 ]]; then
    size=(--architecture test_efficientnet --picture-px 32 --batch-size 4 --rounds 1 --steps 2)
    size+=(--num-outputs 20 --amp off)
    loops=(ours timm) precisions=(off)
    small=(--architecture test_efficientnet --picture-px 32 --batch-size 4)
    study=(--seeds 0 --only baseline channels_last)
    flags=(--architecture test_efficientnet --picture-px 32 --serve-px 32 --batch-size 4 --workers 0 --weights none)
    flags+=(--epochs 2)
else
    size=(--batch-size 128 --rounds 5 --steps 30)
    loops=(ours timm ours-compiled timm-compiled) precisions=(fp16 off)
    small=(--architecture efficientnet_b0 --picture-px 128 --batch-size 16)
    # shellcheck disable=SC2206 # a list of numbers
    study=(--seeds ${SEEDS:-0 1 2})
    flags=(--batch-size 64 --workers "$(nproc)" --weights none)
fi
# Check that the compiler works on this machine, with a network that compiles in a minute.
for precision in "${precisions[@]}"; do
    step "compiles-$precision" "$PYTHON" benchmarks/train_speed.py --arms ours-compiled "${small[@]}" \
        --amp "$precision" --rounds 1 --steps 2
done
step train-speed "$PYTHON" benchmarks/train_speed.py --arms "${loops[@]}" "${size[@]}" \
    --out "$WORK/train-speed/train_speed.json"
drawn_200 drawn-200-large 420 12 0.1
data=$WORK/drawn-200-large-packed
step optimizations "$PYTHON" benchmarks/sweep.py optimizations --data "$data" --out "$WORK/optimizations" \
    "${study[@]}" -- "${flags[@]}"
