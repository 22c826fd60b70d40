#!/usr/bin/env bash
# 1. The demonstration bundle: the recipe `plants` from ImageNet weights on the photographs of data_plants, with pictures of
# other things as negatives; exported in fp32 and fp16, and measured on the test split.
#
# PHOTOGRAPHS  folder of the photographs: plants, flowers17, other_things and unknown_plants (default data/photographs)
# IMAGENET     EfficientNetV2-B0 with ImageNet weights, safetensors (default data/tf_efficientnetv2_b0.safetensors)
# EPOCHS       default 16, as in the recipe
# FLAGS        further flags of train.py, such as: --picture-px 260 --serve-px 300
#
# They must stay the same when the script is started again. The bundle and its evaluation are one file in parts of 15 MB:
# cat demonstration.part.* | tar -xz
# BRING=1    (default) log, evaluation, and the first four parts
# BRING=2    the other parts. Set it when the script has ended; it then only copies.
source "$(dirname "$0")/bootstrap.sh"
case ${BRING:-1} in
    1) keep demonstration 'demonstration/log.jsonl' 'demonstration-evaluation/*-test.json' \
        'demonstration-evaluation/*-served.json' 'demonstration-parts/demonstration.part.0[0-3]' ;;
    2) keep demonstration 'demonstration-parts/demonstration.part.0[4-7]' ;;
    *)
        echo "error: BRING is 1 or 2, not $BRING" >&2
        exit 1
        ;;
esac

photographs=${PHOTOGRAPHS:-data/photographs} imagenet=${IMAGENET:-data/tf_efficientnetv2_b0.safetensors}
negatives=$photographs/other_things epochs=${EPOCHS:-16}
if [[ $TINY == 1 ]]; then
    epochs=2 imagenet=none
    flags=(--architecture test_efficientnet --batch-size 16 --workers 0 --progressive 0 32 1 48 --picture-px 48)
    flags+=(--serve-px 48)
    precisions=(fp32)
else
    flags=(--workers "$(nproc)" --amp bf16)
    precisions=(fp32 fp16)
fi
# shellcheck disable=SC2206 # a list of flags
flags+=(--epochs "$epochs" ${FLAGS:-})
step demonstration-packed "$PYTHON" training/prepare.py sources data_plants --root "$photographs" \
    --out "$WORK/plants" --shards "$WORK/plants-packed" --workers "$(nproc)"
data=$WORK/plants-packed run=$WORK/demonstration bundle=$WORK/demonstration-bundle
step demonstration-trained "$PYTHON" training/train.py plants --data "$data" --run "$run" --auto-resume \
    --weights "$imagenet" --negatives "$negatives" "${flags[@]}"
# shellcheck disable=SC2016 # the inner shell expands them
step demonstration-exported bash -c 'rm -rf "$0" && exec "$@"' "$bundle" "$PYTHON" training/export.py \
    --checkpoint "$run/best.pt" --data "$data" --out "$bundle" --precision "${precisions[@]}" --negatives "$negatives" \
    --name garden_and_wild_plants --model-version "${VERSION:-1.1.0}" \
    --description 'A demonstration that knows garden flowers and wild plants.' \
    --note 'The licenses of these photographs are unclear: for trying the service only.'
step demonstration-evaluated "$PYTHON" training/evaluate.py --bundle "$bundle" --checkpoint "$run/best.pt" \
    --data "$data" --negatives "$negatives" --unknown "$photographs/unknown_plants" --out "$WORK/demonstration-evaluation" \
    --workers "$(nproc)"
# shellcheck disable=SC2016 # the inner shell expands them
step demonstration-parts bash -o pipefail -c '
    cd "$0" && rm -rf demonstration-parts && mkdir demonstration-parts
    tar -cz demonstration-bundle demonstration-evaluation | split -b 15000000 -d - demonstration-parts/demonstration.part.
    ' "$WORK"
