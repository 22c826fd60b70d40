#!/usr/bin/env bash
# 4. Effect of the batch size on speed, memory, and accuracy after equal epochs.
# Variables: ARMS, EPOCHS, SEEDS.
source "$(dirname "$0")/bootstrap.sh"
keep . 'batch-sizes/batch_sizes*'
remember 'batch-sizes/machine.json' 'batch-sizes/*/run.json'

drawn_200 drawn-200-more 160 24 0.3
if [[ $TINY == 1 ]]; then
    EPOCHS=${EPOCHS:-2} size=(--seeds 0 --only batch_16 batch_32)
    flags=(--architecture test_efficientnet --picture-px 32 --serve-px 32 --workers 0 --weights none)
else
    # shellcheck disable=SC2206 # lists
    size=(--seeds ${SEEDS:-0 1 2})
    size+=(--only ${ARMS:-batch_16 batch_64 batch_256 batch_64_same_rates batch_256_same_rates})
    flags=(--picture-px 128 --serve-px 144 --workers "$(nproc)" --weights "${WEIGHTS:-$WORK/weights.safetensors}")
fi
study batch-sizes batch_sizes --data "$WORK/drawn-200-more-packed" --out "$WORK/batch-sizes" "${size[@]}" \
    -- --epochs "${EPOCHS:-5}" "${flags[@]}"
