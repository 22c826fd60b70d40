#!/usr/bin/env bash
# 4. Whether a bigger batch is better: speed, memory, and accuracy after equal epochs and after equal time.
source "$(dirname "$0")/bootstrap.sh"

herbarium_200
if [[ $TINY == 1 ]]; then
    study=(--sizes 4 8 --epochs 2 --seeds 0 --no-equal-time --cpu-s 0)
    flags=(--architecture test_efficientnet --picture-px 32 --serve-px 32 --workers 0 --weights none)
else
    study=(--sizes 16 32 64 128 256 --epochs 15 --seeds 0 1 2)
    flags=(--picture-px 128 --serve-px 144 --workers "$(nproc)" --weights "${WEIGHTS:-$WORK/scratch/best.pt}")
fi
step batch-sizes "$PYTHON" training/benchmark.py batch-sizes --data "$WORK/herbarium-200-packed" \
    --out "$WORK/batch-sizes" "${study[@]}" -- "${flags[@]}"
cp "$WORK"/batch-sizes/batch* "$WORK/results/"
