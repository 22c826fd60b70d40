#!/usr/bin/env bash
# 1. Trains the network of the demonstration bundle on the photographs of data_more_plants, from ImageNet weights. It
# measures its speed first, and takes as many epochs as the time allows. The small checkpoint comes home: export it where
# the prepared data is, on a CPU.
#
# DATA       shards of data_more_plants (default data/more_plants_224)
# NEGATIVES  photographs of other things, reduced alike (default data/other_things_224)
# UNKNOWN    photographs of plants that the network shall not know, reduced alike (default data/unknown_224)
# IMAGENET   weights of timm's tf_efficientnetv2_b0 from ImageNet, safetensors under timm's names (default
#            data/tf_efficientnetv2_b0.safetensors)
# FLAGS      further flags of train.py
#
# Make the first three before, since a GPU does not help:
#     training/prepare.py sources data_more_plants --root PHOTOGRAPHS --out data/more_plants
#     training/prepare.py pack data/more_plants --out data/more_plants_224 --short-side-px 224 --quality 75 --shard-mb 27
#     training/prepare.py reduce NEGATIVES --out data/other_things_224 --short-side-px 224 --quality 75
#     training/prepare.py reduce UNKNOWN --out data/unknown_224 --short-side-px 224 --quality 75
source "$(dirname "$0")/bootstrap.sh"
keep plants 'plants/log.jsonl' 'plants-small.pt'

data=${DATA:-data/more_plants_224} negatives=${NEGATIVES:-data/other_things_224} unknown=${UNKNOWN:-data/unknown_224}
imagenet=${IMAGENET:-data/tf_efficientnetv2_b0.safetensors}
if [[ $TINY == 1 ]]; then imagenet=none; fi
for needed in "$data" "$negatives" "$unknown" "$imagenet"; do
    if [[ ! -e $needed && $needed != none ]]; then
        echo "error: $needed is not there: the head of this script says what it is" >&2
        exit 1
    fi
done
# Where the time did not suffice for all shards, the run gets a manifest without the rows of those that are missing now.
# It keeps the hash of the one that it was packed from, so the network can be exported with all data.
shards_here='import shutil, sys
from pathlib import Path
sys.path[0] = "."
import numpy as np
import pyarrow.parquet as pq
from models.atomic_file import replaced
data, fewer = map(Path, sys.argv[1:])
table = pq.read_table(data / "manifest.parquet")
missing = [name for name in table["shard"].unique().to_pylist() if not (data / name).exists()]
splits = np.array(table["split"].to_pylist())
trained = np.isin(splits, ["train", "validation"])
lost = trained & np.isin(table["shard"].to_pylist(), missing)
for split in np.unique(splits[trained]):
    if lost[splits == split].all():
        sys.exit(f"error: {data} has no shard of {split} pictures")
if lost.any():
    fewer.mkdir(exist_ok=True)
    shutil.copy(data / "taxa.json", fewer)
    with replaced(fewer / "manifest.parquet") as stream:
        pq.write_table(table.filter(~lost), stream)
    print(f"Left out, since their shards are not here: {lost.sum():,} of {trained.sum():,} pictures")'
step plants-shards "$PYTHON" -c "$shards_here" "$data" "$WORK/plants-data"
shards=$data
if [[ -e $WORK/plants-data ]]; then data=$WORK/plants-data; fi
flags=(--data "$data" --shards "$shards" --weights "$imagenet" --negatives "$negatives" --unknown "$unknown" --warmup-epochs 1)
if [[ $TINY == 1 ]]; then
    sides=(32 40 48) steps=9
    flags+=(--architecture test_efficientnet --batch-size 8 --workers 0 --serve-px 48)
else
    sides=(160 192 224) steps=60
    # The rates are the recipe's for 32 pictures a step, times the square root of four. Each picture is seen often, so it
    # is augmented more; mixing smooths the labels already.
    flags+=(--device cuda --amp bf16 --workers 14 --batch-size 128 --backbone-lr 6e-4 --head-lr 2e-3)
    flags+=(--randaugment-magnitude 9 --erase 0.2 --mix-share 0.5 --dropout 0.3 --label-smoothing 0.05)
    flags+=(--serve-px 256)
fi
# shellcheck disable=SC2206 # a list of flags
flags+=(--validate-every-epochs 10 ${FLAGS:-})
probe=$WORK/plants-probe run=$WORK/plants
step plants-probe "$PYTHON" training/train.py plants --run "$probe" --auto-resume "${flags[@]}" \
    --progressive 0 "${sides[1]}" --epochs 1000 --max-steps "$steps" --log-every-steps $((steps / 3))
# Seconds for the choice of kernels for each size, for the start of each epoch, and for the small checkpoint.
epochs='import json, sys
from pathlib import Path
sys.path[0] = "."
from training.dataset.manifest import Manifest
log = [json.loads(line) for line in Path(sys.argv[1], "log.jsonl").read_text().splitlines()]
batch = next(event["recipe"]["schedule"]["batch_size"] for event in log if event["event"] == "start")
losses = [event for event in log if event["event"] == "losses"]
speed = batch * (losses[-1]["step"] - losses[0]["step"]) / (losses[-1]["time"] - losses[0]["time"])
seconds = len(Manifest(Path(sys.argv[2])).rows_of("train")) / speed + 1.5
print(max(3, min(40, int((float(sys.argv[3]) - 70) / seconds))))'
if [[ ! -e $WORK/plants-epochs ]]; then "$PYTHON" -c "$epochs" "$probe" "$data" "$(left)" >"$WORK/plants-epochs"; fi
epochs=$(<"$WORK/plants-epochs")
# A run that the time ends brings its last weights too; started again, it resumes.
small=("$PYTHON" benchmarks/gpu/small_checkpoint.py --out "$WORK/plants-small.pt")
code=0
(
    LIMIT_S=$((LIMIT_S - 30))
    step plants-trained "$PYTHON" training/train.py plants --run "$run" --auto-resume "${flags[@]}" --epochs "$epochs" \
        --progressive 0 "${sides[0]}" $((epochs * 4 / 10)) "${sides[1]}" $((epochs * 7 / 10)) "${sides[2]}"
) || code=$?
if ((code == 75)) && [[ -e $run/last.pt ]]; then "${small[@]}" "$run/last.pt"; fi
if ((code)); then exit "$code"; fi
step plants-small "${small[@]}" "$run/best.pt"
