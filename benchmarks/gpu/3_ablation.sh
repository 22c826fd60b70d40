#!/usr/bin/env bash
# 3. What each part of the recipe is worth, from the checkpoint of 2_scratch.sh (or WEIGHTS), on 200 drawn species and on
# the photographs of flowers17 (FLOWERS: a folder with one folder of pictures a class; left out where it is missing).
source "$(dirname "$0")/bootstrap.sh"

weights=${WEIGHTS:-$WORK/scratch/best.pt}
if [[ ! -e $weights ]]; then
    echo "error: there is no checkpoint at $weights: run benchmarks/gpu/2_scratch.sh first, or name one in WEIGHTS" >&2
    exit 1
fi
flowers=${FLOWERS:-data/flowers17}
herbarium_200
sets=(herbarium-200)
if [[ -d $flowers ]]; then
    step flowers17-packed "$PYTHON" training/prepare.py folder "$flowers" --out "$WORK/flowers17" \
        --shards "$WORK/flowers17-packed" --workers "$(nproc)"
    sets+=(flowers17)
fi
if [[ $TINY == 1 ]]; then
    export EPOCHS=2 RATES=1e-3 SEEDS='0 1' BUDGET_S=2
    flags=(--architecture test_efficientnet --picture-px 32 --serve-px 32 --workers 0)
else
    export EPOCHS=15 RATES='1e-5 3e-5 1e-4 3e-4' SEEDS='0 1 2'
    # The size that the checkpoint was trained at; at 380 px every arm would take nine times as long.
    flags=(--picture-px 128 --serve-px 144 --workers 8)
fi
for set in "${sets[@]}"; do
    SLICE_S=$(left) step "ablation-$set" benchmarks/gpu/ablation.sh "$WORK/$set-packed" "$weights" \
        "$WORK/ablation-$set" "${flags[@]}"
    mkdir -p "$WORK/results/ablation-$set"
    cp "$WORK/ablation-$set"/ablation* "$WORK/results/ablation-$set/"
done
