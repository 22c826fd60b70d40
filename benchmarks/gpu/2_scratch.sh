#!/usr/bin/env bash
# 2. Trains EfficientNet-B4 with 5,337 outputs from random weights on drawn plants, exports a bundle and sends one request
# to the service. The bundle's network, and the weights for scripts 3 and 4, are copied to OUT in parts of 15 MB:
#
# BRING=bundle    (default) log, figures and bundle: tar -xzf scratch.tar.gz; cat model.part.* > bundle/model.fp32.onnx
# BRING=weights   cat weights.part.* > weights.safetensors. Set it when the script has ended; it then only copies.
source "$(dirname "$0")/bootstrap.sh"
case ${BRING:-bundle} in
    bundle) keep scratch 'scratch/log.jsonl' 'parts/scratch.tar.gz' 'parts/model.part.*' ;;
    weights) keep scratch 'parts/weights.part.*' ;;
    *)
        echo "error: BRING is bundle or weights, not $BRING" >&2
        exit 1
        ;;
esac

if [[ $TINY == 1 ]]; then
    herbarium herbarium 48 8 0.1
    flags=(--architecture test_efficientnet --expect-outputs 0 --epochs 2 --batch-size 16 --workers 0 --amp off)
    flags+=(--no-compile --progressive 0 32 1 48 --picture-px 48 --serve-px 48 --warmup-epochs 0)
else
    # Smaller and fewer pictures than in a real run, so that it takes minutes.
    herbarium herbarium 160 8 0.1 --full-width
    flags=(--epochs 30 --workers "$(nproc)" --progressive 0 96 15 128 --picture-px 128 --serve-px 144)
    flags+=(--ema-decay 0.999 --validate-every-epochs 5)
fi
data=$WORK/herbarium-packed run=$WORK/scratch
step scratch-trained "$PYTHON" training/train.py b4_5337_scratch --data "$data" --run "$run" --auto-resume "${flags[@]}"
whole_step scratch-weights "$PYTHON" benchmarks/gpu/small_weights.py "$run/best.pt" --out "$WORK/weights.safetensors"
# shellcheck disable=SC2016 # the inner shell expands them
whole_step scratch-exported bash -c 'rm -rf "$0" && exec "$@"' "$WORK/bundle" "$PYTHON" training/export.py \
    --checkpoint "$run/best.pt" --data "$data" --out "$WORK/bundle" --workers "$(nproc)" \
    --note "Trained on drawn plants of invented species: a rehearsal, of no use on photographs."
whole_step scratch-evaluated "$PYTHON" training/evaluate.py --bundle "$WORK/bundle" --checkpoint "$run/best.pt" \
    --data "$data" --out "$WORK/evaluation" --workers "$(nproc)"
picture=$(find "$WORK/herbarium-raw" -name '*.jpg' -print -quit)
whole_step scratch-asked "$PYTHON" benchmarks/gpu/ask.py --bundle "$WORK/bundle" --picture "$picture" \
    --out "$WORK/answer.json"
# shellcheck disable=SC2016 # the inner shell expands them
whole_step scratch-parts bash -c '
    cd "$0" && rm -rf parts && mkdir parts
    tar --exclude "*.onnx" -czf parts/scratch.tar.gz answer.json bundle evaluation
    split -b 15000000 -d bundle/model.fp32.onnx parts/model.part.
    split -b 15000000 -d weights.safetensors parts/weights.part.' "$WORK"
