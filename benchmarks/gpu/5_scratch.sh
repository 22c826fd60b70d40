#!/usr/bin/env bash
# 5. Trains EfficientNet-B4 with 5,337 outputs from random weights on drawn plants of as many species, exports a
# bundle, and measures it, also with drawn plants of which it knows no species (30 % of all). The bundle with its
# figures, and the weights for script 6, are copied to OUT in parts of 15 MB.
#
# BRING=bundle    (default) log, figures and bundle: cat scratch.part.* | tar -xz
# BRING=weights   cat weights.part.* > weights.pt. Set it when the script has ended; it then only copies.
source "$(dirname "$0")/bootstrap.sh"
name=scratch
case ${BRING:-bundle} in
    bundle) keep "$name" "$name/log.jsonl" "$name-parts/scratch.part.*" ;;
    weights) keep "$name" "$name-parts/weights.part.*" ;;
    *)
        echo "error: BRING is bundle or weights, not $BRING" >&2
        exit 1
        ;;
esac

if [[ $TINY == 1 ]]; then
    drawn flora 48 8 0.1 12
    draw_folder outside 48 8 --species 5 --first 12
    flags=(--architecture test_efficientnet --epochs 2 --batch-size 16 --device cpu --workers 0)
    flags+=(--amp off --compile off --progressive 0 32 1 48 --picture-px 48 --serve-px 48 --warmup-epochs 0)
else
    # Smaller and fewer pictures than in a real run, so that it takes minutes.
    drawn flora 160 8 0.1 5337
    draw_folder outside 160 2 --species 2170 --first 5337
    flags=(--epochs 30 --workers "$(nproc)" --progressive 0 96 15 128 --picture-px 128 --serve-px 144)
    flags+=(--ema-decay 0.999 --validate-every-epochs 5)
fi
data=$WORK/flora-packed
run=$WORK/$name bundle=$WORK/$name-files/bundle
mkdir -p "$WORK/$name-files"
step "$name-trained" "$PYTHON" training/train.py b4_5337_scratch --data "$data" --run "$run" --auto-resume "${flags[@]}"
weights=$WORK/weights.pt
step "$name-weights" "$PYTHON" benchmarks/gpu/small_checkpoint.py "$run/best.pt" --out "$weights"
# shellcheck disable=SC2016 # the inner shell expands them
step "$name-exported" bash -c 'rm -rf "$0" && exec "$@"' "$bundle" "$PYTHON" training/export.py \
    --checkpoint "$run/best.pt" --data "$data" --out "$bundle" \
    --note "Trained on drawn plants of invented species: a rehearsal, of no use on photographs."
step "$name-evaluated" "$PYTHON" training/evaluate.py --bundle "$bundle" --checkpoint "$run/best.pt" \
    --data "$data" --unknown "$WORK/outside-raw" --out "$WORK/$name-files/evaluation" --workers "$(nproc)"
# shellcheck disable=SC2016 # the inner shell expands them
step "$name-parts" bash -o pipefail -c '
    rm -rf "$0" && mkdir "$0"
    tar -C "$1" -cz bundle evaluation | split -b 15000000 -d - "$0/scratch.part."
    split -b 15000000 -d "$2" "$0/weights.part."' "$WORK/$name-parts" "$WORK/$name-files" "$weights"
