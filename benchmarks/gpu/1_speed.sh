#!/usr/bin/env bash
# 1. Ours against timm's training loop, then what each optimization is worth.
source "$(dirname "$0")/bootstrap.sh"

herbarium_200
data=$WORK/herbarium-200-packed
if [[ $TINY == 1 ]]; then
    size=(--architecture test_efficientnet --picture-px 32 --batch-size 4 --rounds 1 --steps 2 --workers 0)
    size+=(--num-outputs 20 --amp off)
    loops=(ours timm) stored=(ours ours-data timm-data)
    study=(--epochs 2 --seeds 0 --only channels_last)
    flags=(--architecture test_efficientnet --picture-px 32 --serve-px 32 --batch-size 4 --workers 0 --weights none)
else
    size=(--batch-size 128 --rounds 5 --steps 30 --workers "$(nproc)")
    loops=(ours timm ours-compiled timm-compiled)
    stored=(ours ours-compiled ours-data ours-compiled-data timm-data timm-compiled-data)
    study=(--epochs 3 --seeds 0 1 2)
    flags=(--batch-size 64 --workers "$(nproc)" --weights none)
fi
step train-speed "$PYTHON" benchmarks/train_speed.py --arms "${loops[@]}" "${size[@]}" \
    --out "$WORK/results/train_speed.json"
step train-speed-data "$PYTHON" benchmarks/train_speed.py --arms "${stored[@]}" "${size[@]}" --data "$data" \
    --out "$WORK/results/train_speed_data.json"
step optimizations "$PYTHON" training/benchmark.py optimizations --data "$data" --out "$WORK/optimizations" \
    "${study[@]}" -- "${flags[@]}"
cp "$WORK"/optimizations/optimizations* "$WORK/results/"
