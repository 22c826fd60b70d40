#!/usr/bin/env bash
# 2. EfficientNet-B4 at full width, 5,337 outputs, from random weights on drawn plants, to a bundle that the service
# answers from. The bundle's network comes in parts of 15 MB: cat model.part.* > model.fp32.onnx
source "$(dirname "$0")/bootstrap.sh"

if [[ $TINY == 1 ]]; then
    herbarium herbarium 48 8
    flags=(--architecture test_efficientnet --expect-outputs 0 --epochs 2 --batch-size 16 --workers 0 --amp off)
    flags+=(--no-compile --progressive 0 32 --picture-px 48 --serve-px 48 --warmup-epochs 0)
else
    # Smaller and fewer than a real run's, so that all of it is a matter of minutes.
    herbarium herbarium 160 12 --full-width
    flags=(--epochs 30 --workers "$(nproc)" --progressive 0 96 15 128 --picture-px 128 --serve-px 144)
    flags+=(--ema-decay 0.999 --validate-every-epochs 5)
fi
data=$WORK/herbarium-packed run=$WORK/scratch
step scratch-trained "$PYTHON" training/train.py b4_5337_scratch --data "$data" --run "$run" --auto-resume "${flags[@]}"
# shellcheck disable=SC2016 # the inner shell expands them
step scratch-exported bash -c 'rm -rf "$0" && exec "$@"' "$WORK/bundle" "$PYTHON" training/export.py \
    --checkpoint "$run/best.pt" --data "$data" --out "$WORK/bundle" --workers "$(nproc)" \
    --note "Trained on drawn plants of invented species: a rehearsal, of no use on photographs."
step scratch-evaluated "$PYTHON" training/evaluate.py --bundle "$WORK/bundle" --checkpoint "$run/best.pt" \
    --data "$data" --out "$WORK/evaluation" --workers "$(nproc)"
mkdir -p "$WORK/results/scratch"
cp "$run/log.jsonl" "$WORK"/evaluation/*.json "$WORK/results/scratch/"
tar -C "$WORK/bundle" --exclude '*.onnx' -czf "$WORK/results/scratch/bundle.tar.gz" .
split -b 15000000 -d "$WORK/bundle/model.fp32.onnx" "$WORK/results/scratch/model.part."
