#!/usr/bin/env bash
# 3. Effect of each part of the recipe, from the weights of 2_scratch.sh (or WEIGHTS), on 200 drawn species.
#
# Variables: EPOCHS, SEEDS, ARMS (default: all). They must stay the same when the script is started again.
source "$(dirname "$0")/bootstrap.sh"
keep ablation 'ablation/ablation*'
remember ablation/machine.json 'ablation/*/run.json'
need_weights

# Half of the pictures are for validation: differences of a few points need a thousand pictures.
drawn_200 drawn-200 160 12 0.5
if [[ $TINY == 1 ]]; then
    EPOCHS=${EPOCHS:-2} SEEDS=${SEEDS:-0 1}
    flags=(--architecture test_efficientnet --picture-px 32 --serve-px 32 --workers 0)
else
    # The size that the weights were trained at.
    flags=(--picture-px 128 --serve-px 144 --workers 8)
fi
# shellcheck disable=SC2206 # lists
size=(--seeds ${SEEDS:-0 1 2} ${ARMS:+--only $ARMS})
study ablation ablation --data "$WORK/drawn-200-packed" --out "$WORK/ablation" "${size[@]}" \
    -- --weights "$weights" --epochs "${EPOCHS:-5}" "${flags[@]}"
