#!/usr/bin/env bash
# 4. Effect of the batch size on speed, memory, and accuracy after equal epochs and after equal time.
# Variables: SIZES, EPOCHS, SEEDS.
source "$(dirname "$0")/bootstrap.sh"
keep . 'batch-sizes/batch_sizes*'
remember 'batch-sizes/machine.json' 'batch-sizes/runs/*/*/arm.json'

herbarium_200 herbarium-200-more 160 24 0.3
if [[ $TINY == 1 ]]; then
    size=(--sizes 4 8 --epochs 2 --seeds 0 --no-equal-time)
    flags=(--architecture test_efficientnet --picture-px 32 --serve-px 32 --workers 0 --weights none)
else
    # shellcheck disable=SC2206 # lists of numbers
    size=(--sizes ${SIZES:-16 64 256} --epochs "${EPOCHS:-5}" --seeds ${SEEDS:-0 1 2})
    flags=(--picture-px 128 --serve-px 144 --workers "$(nproc)" --weights "${WEIGHTS:-$WORK/weights.safetensors}")
fi
study batch-sizes batch-sizes --data "$WORK/herbarium-200-more-packed" --out "$WORK/batch-sizes" "${size[@]}" -- "${flags[@]}"
