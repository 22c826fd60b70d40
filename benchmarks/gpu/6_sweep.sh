#!/usr/bin/env bash
# 6. A sweep on 200 drawn species, from the weights of 5_scratch.sh (or WEIGHTS).
#
# 6_sweep.sh ablation       effect of each part of the recipe
# 6_sweep.sh batch_sizes    effect of the batch size on speed, memory, and accuracy after equal epochs
#
# Variables: EPOCHS, SEEDS, ARMS (default: all). They must stay the same when the script is started again.
source "$(dirname "$0")/bootstrap.sh"
sweep=${1:-ablation}
if [[ ! -e benchmarks/sweeps/$sweep.toml ]]; then
    echo "error: there is no sweep $sweep in benchmarks/sweeps" >&2
    exit 1
fi
keep . "$sweep/$sweep*"
remember "$sweep/machine.json" "$sweep/*/run.json"
weights=${WEIGHTS:-$WORK/weights.pt}
if [[ ! -e $weights ]]; then
    echo "error: no weights at $weights: run benchmarks/gpu/5_scratch.sh first, or set WEIGHTS" >&2
    exit 1
fi

# Half of the pictures are for validation: differences of a few points need a thousand pictures.
drawn_200 drawn-200 160 12 0.5
if [[ $TINY == 1 ]]; then
    EPOCHS=${EPOCHS:-2} SEEDS=${SEEDS:-0 1}
    flags=(--architecture test_efficientnet --picture-px 32 --serve-px 32 --workers 0 --weights none)
else
    # The size that the weights were trained at.
    flags=(--picture-px 128 --serve-px 144 --workers "$(nproc)" --weights "$weights")
fi
# shellcheck disable=SC2206 # lists
size=(--seeds ${SEEDS:-0 1 2} ${ARMS:+--only $ARMS})
step "$sweep" "$PYTHON" benchmarks/sweep.py "$sweep" --data "$WORK/drawn-200-packed" --out "$WORK/$sweep" "${size[@]}" \
    -- --epochs "${EPOCHS:-5}" "${flags[@]}"
