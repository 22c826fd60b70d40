#!/usr/bin/env bash
# 5. The demonstration bundle: EfficientNet-B4 from random weights on the photographs of flowers17, with pictures of other
# things as negatives; exported in fp32, fp16 and int8, and measured on the test split.
#
# FLOWERS    folder of the photographs, with labels.csv (default data/flowers17)
# NEGATIVES  folder of pictures without a plant (default data/other_things)
# UNKNOWN    folder of plants of other species (default data/unknown_plants)
# EPOCHS     default 320. The last fifth has the final picture size.
# FLAGS      further flags of train.py, such as: --picture-px 192 --serve-px 192 --progressive 0 128 256 192
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

negatives=${NEGATIVES:-data/other_things} unknown=${UNKNOWN:-data/unknown_plants} epochs=${EPOCHS:-320}
if [[ $TINY == 1 ]]; then
    epochs=2
    flags=(--architecture test_efficientnet --batch-size 16 --workers 0 --progressive 0 32 1 48 --picture-px 48)
    flags+=(--serve-px 48 --warmup-epochs 0)
    precisions=(fp32)
else
    flags=(--workers "$(nproc)" --amp bf16 --progressive 0 96 "$((epochs * 4 / 5))" 128)
    precisions=(fp32 fp16 int8)
fi
# shellcheck disable=SC2206 # a list of flags
flags+=(--epochs "$epochs" ${FLAGS:-})
flowers17 demonstration-data --calibration-share 0.16 --validation-share 0.1
data=$WORK/demonstration-data/flowers17 run=$WORK/demonstration bundle=$WORK/demonstration-bundle
step demonstration-trained "$PYTHON" training/train.py flowers17_scratch --data "$data" --run "$run" --auto-resume \
    --negatives "$negatives" "${flags[@]}"
# shellcheck disable=SC2016 # the inner shell expands them
whole_step demonstration-exported bash -c 'rm -rf "$0" && exec "$@"' "$bundle" "$PYTHON" training/export.py \
    --checkpoint "$run/best.pt" --data "$data" --out "$bundle" --precision "${precisions[@]}" --negatives "$negatives" \
    --model-version "${VERSION:-2.1.0}" --workers "$(nproc)" \
    --note 'The licenses of these photographs are unclear (a research data set): for trying the service only.'
whole_step demonstration-evaluated "$PYTHON" training/evaluate.py --bundle "$bundle" --checkpoint "$run/best.pt" \
    --data "$data" --negatives "$negatives" --unknown "$unknown" --out "$WORK/demonstration-evaluation" \
    --workers "$(nproc)"
# shellcheck disable=SC2016 # the inner shell expands them
whole_step demonstration-parts bash -o pipefail -c '
    cd "$0" && rm -rf demonstration-parts && mkdir demonstration-parts
    tar -cz demonstration-bundle demonstration-evaluation | split -b 15000000 -d - demonstration-parts/demonstration.part.
    ' "$WORK"
