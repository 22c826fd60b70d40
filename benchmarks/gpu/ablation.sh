#!/bin/sh
# The ablation of the 7.9 points, in slices: pauses after eight minutes with exit code 75, and goes on when it is started
# again with the same words. Exit code 0: everything is written to OUT.
#
# benchmarks/gpu/ablation.sh DATA WEIGHTS OUT [flags of train.py]
#
# DATA: flowers17, or 200 species of the herbarium, as training/prepare.py wrote them. WEIGHTS: a checkpoint that was
# trained on the herbarium. SLICE_S, EPOCHS, RATES, SEEDS and BUDGET_S change the size of it; they must stay the same
# from slice to slice. BUDGET_S is the training time of every arm at equal time; 0 takes what the baseline needs.
set -eu
data=${1:?"name the data: ablation.sh DATA WEIGHTS OUT"}
weights=${2:?"name the weights: ablation.sh DATA WEIGHTS OUT"}
out=${3:?"name the folder for the results: ablation.sh DATA WEIGHTS OUT"}
shift 3
# shellcheck disable=SC2086 # rates and seeds are lists
exec "${PYTHON:-python}" "$(dirname "$0")/../../training/benchmark.py" ablation --data "$data" --weights "$weights" --out "$out" \
    --epochs "${EPOCHS:-15}" --rates ${RATES:-1e-5 3e-5 1e-4 3e-4} --seeds ${SEEDS:-0 1 2} \
    --budget-s "${BUDGET_S:-0}" --stop-after-s "${SLICE_S:-480}" -- "$@"
