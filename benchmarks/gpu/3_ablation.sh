#!/usr/bin/env bash
# 3. Effect of each part of the recipe, from the weights of 2_scratch.sh (or WEIGHTS), on 200 drawn species.
#
# Variables: EPOCHS, RATES, SEEDS, ARMS (default: all), BUDGET_S (seconds of training at equal time; by default there are
# no such runs). They must stay the same when the script is started again.
source "$(dirname "$0")/bootstrap.sh"
keep ablation 'ablation/ablation*'
remember ablation/machine.json 'ablation/runs/*/*/arm.json'
need_weights

# Half of the pictures are for validation: differences of a few points need a thousand pictures.
herbarium_200 herbarium-200 160 12 0.5
if [[ $TINY == 1 ]]; then
    EPOCHS=${EPOCHS:-2} RATES=${RATES:-1e-4 1e-3} SEEDS=${SEEDS:-0 1} BUDGET_S=${BUDGET_S:-2}
    flags=(--architecture test_efficientnet --picture-px 32 --serve-px 32 --workers 0)
else
    # The size that the weights were trained at. Claims about speed and memory are judged only at the recipe's size.
    flags=(--picture-px 128 --serve-px 144 --workers 8)
fi
# shellcheck disable=SC2206 # lists
size=(--epochs "${EPOCHS:-5}" --rates ${RATES:-3e-5 1e-4 3e-4} --seeds ${SEEDS:-0 1 2} ${ARMS:+--only $ARMS})
if [[ -n ${BUDGET_S:-} ]]; then size+=(--budget-s "$BUDGET_S"); else size+=(--no-equal-time); fi
study ablation ablation --data "$WORK/herbarium-200-packed" --weights "$weights" --out "$WORK/ablation" \
    "${size[@]}" -- "${flags[@]}"
