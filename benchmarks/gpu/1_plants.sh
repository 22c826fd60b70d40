#!/usr/bin/env bash
# 1. The demonstration bundle: the recipe `plants` from ImageNet weights on the photographs of data_plants, with pictures of
# other things as negatives. The export measures the test split; evaluate.py and the gate can run elsewhere, on a CPU.
#
# DATA       shards of data_plants (default data/plants-packed). Make them before, since a GPU does not help:
#                training/prepare.py sources data_plants --root PHOTOGRAPHS --out data/plants
#                training/prepare.py pack data/plants --out data/plants-packed --short-side-px 224 --shard-mb 40
# NEGATIVES  folder with some hundred photographs of animals, tools and other things (default data/other_things)
# IMAGENET   weights of timm's tf_efficientnetv2_b0 from ImageNet, safetensors under timm's names (default
#            data/tf_efficientnetv2_b0.safetensors)
# EPOCHS     default 16, as in the recipe
# FLAGS      further flags of train.py, such as: --picture-px 260 --serve-px 300
#
# They must stay the same when the script is started again. The bundle is one file in parts of 15 MB:
# cat bundle.part.* | tar -xz
source "$(dirname "$0")/bootstrap.sh"
keep plants 'plants/log.jsonl' 'plants-speed.json' 'plants-parts/bundle.part.*'

data=${DATA:-data/plants-packed} negatives=${NEGATIVES:-data/other_things}
imagenet=${IMAGENET:-data/tf_efficientnetv2_b0.safetensors} epochs=${EPOCHS:-16}
if [[ $TINY == 1 ]]; then
    epochs=2 imagenet=none
    flags=(--architecture test_efficientnet --batch-size 16 --workers 0 --progressive 0 32 1 48 --picture-px 48)
    flags+=(--serve-px 48)
    forecast=none
else
    flags=(--workers "$(nproc)" --amp bf16)
    forecast=plants
fi
for needed in "$data" "$negatives" "$imagenet"; do
    if [[ ! -e $needed && $needed != none ]]; then
        echo "error: $needed is not there: the head of this script says what it is" >&2
        exit 1
    fi
done
# shellcheck disable=SC2206 # a list of flags
flags+=(--epochs "$epochs" ${FLAGS:-})
run=$WORK/plants bundle=$WORK/plants-bundle
step plants-trained "$PYTHON" training/train.py plants --data "$data" --run "$run" --auto-resume \
    --weights "$imagenet" --negatives "$negatives" "${flags[@]}"
step plants-speed "$PYTHON" benchmarks/gpu/epoch_time.py "$run" --forecast "$forecast" --out "$WORK/plants-speed.json"
# shellcheck disable=SC2016 # the inner shell expands them
step plants-exported bash -c 'rm -rf "$0" && exec "$@"' "$bundle" "$PYTHON" training/export.py \
    --checkpoint "$run/best.pt" --data "$data" --out "$bundle" --negatives "$negatives" \
    --name garden_and_wild_plants --model-version "${VERSION:-1.1.0}" \
    --description 'A demonstration that knows garden flowers and wild plants.' \
    --note 'The licenses of these photographs are unclear: for trying the service only.'
# shellcheck disable=SC2016 # the inner shell expands them
step plants-parts bash -o pipefail -c '
    cd "$0" && rm -rf plants-parts && mkdir plants-parts
    tar -cz plants-bundle | split -b 15000000 -d - plants-parts/bundle.part.' "$WORK"
