#!/usr/bin/env bash
# 7. The weights of 2_scratch.sh (or WEIGHTS), which have seen drawn plants only, trained further on the photographs of
# flowers17 (FLOWERS) with one rate for all layers and with a classifier that learns 3 and 10 times as fast; and the same
# number of epochs from random weights.
#
# Variables: EPOCHS, SEEDS, RATE (of the backbone). They must stay the same when the script is started again.
source "$(dirname "$0")/bootstrap.sh"
need_weights
keep transfer 'transfer.json' 'transfer.md' 'transfer-parts/logs.tar.gz'
remember 'done/transfer-*' 'transfer/*/*/log.jsonl' 'transfer/*/*/evaluation/*.json'

rate=${RATE:-3e-4}
if [[ $TINY == 1 ]]; then
    EPOCHS=${EPOCHS:-1} SEEDS=${SEEDS:-0}
    flags=(--architecture test_efficientnet --batch-size 16 --workers 0 --picture-px 32 --progressive --serve-px 32)
    flags+=(--warmup-epochs 0)
else
    flags=(--batch-size 64 --workers "$(nproc)" --amp bf16 --picture-px 128 --progressive --serve-px 128)
fi
flags+=(--epochs "${EPOCHS:-60}" --no-tensorboard)
flowers17 photographs --calibration-share 0.16 --validation-share 0.1
data=$WORK/photographs/flowers17
arm() {
    local seed run
    for seed in ${SEEDS:-0 1 2}; do
        run=$WORK/transfer/$1/$seed
        step "transfer-$1-$seed" "$PYTHON" training/train.py flowers17_scratch --data "$data" --run "$run" --auto-resume \
            --seed "$seed" "${flags[@]}" "${@:2}"
        whole_step "transfer-$1-$seed-evaluated" "$PYTHON" training/evaluate.py --checkpoint "$run/best.pt" \
            --data "$data" --out "$run/evaluation" --workers "$(nproc)"
    done
}
arm scratch
for times in 1 3 10; do
    arm "head-${times}x" --weights "$weights" --backbone-lr "$rate" \
        --head-lr "$(awk "BEGIN { print $rate * $times }")"
done
# shellcheck disable=SC2016 # the inner shell expands them
whole_step transfer-table bash -o pipefail -c '"${@:2}" | tee "$1"' -- "$WORK/transfer.md" "$PYTHON" \
    benchmarks/gpu/transfer.py "$WORK/transfer" --out "$WORK/transfer.json"
# shellcheck disable=SC2016 # the inner shell expands them
whole_step transfer-parts bash -c '
    cd "$0" && mkdir -p transfer-parts
    tar -czf transfer-parts/logs.tar.gz transfer/*/*/log.jsonl transfer/*/*/evaluation/*.json' "$WORK"
