#!/usr/bin/env bash
# 3. Effect of each part of the recipe, from the weights of 2_scratch.sh (or WEIGHTS), on 200 drawn species or on the
# photographs of flowers17 (FLOWERS: a folder with their list, labels.csv).
#
# 3_ablation.sh [herbarium-200|flowers17]
#
# Variables: EPOCHS, RATES, SEEDS, ARMS (default: all), BUDGET_S (seconds of training at equal time; by default there are
# no such runs). They must stay the same when the script is started again.
source "$(dirname "$0")/bootstrap.sh"
data_set=${1:-herbarium-200}
keep "ablation-$data_set" "ablation-$data_set/ablation*"
remember "ablation-$data_set/machine.json" "ablation-$data_set/runs/*/*/arm.json"
need_weights

case $data_set in
    herbarium-200)
        # Half of the pictures are for validation: differences of a few points need a thousand pictures.
        herbarium_200 herbarium-200 160 12 0.5
        data=$WORK/herbarium-200-packed
        ;;
    flowers17)
        flowers17 ablation-data --validation-share 0.3
        data=$WORK/ablation-data/flowers17
        ;;
    *)
        echo "error: no data set $data_set: use herbarium-200 or flowers17" >&2
        exit 1
        ;;
esac
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
study "ablation-$data_set" ablation --data "$data" --weights "$weights" --out "$WORK/ablation-$data_set" \
    "${size[@]}" -- "${flags[@]}"
