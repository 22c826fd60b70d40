#!/usr/bin/env bash
# 2. The reference recipe from shards for five minutes (b4_5337_scratch at 320 px, with pictures of 420 px). The log tells
# the pictures a second of each epoch; the first one compiles and chooses kernels.
source "$(dirname "$0")/bootstrap.sh"
keep full-width 'full-width/log.jsonl'

if [[ $TINY == 1 ]]; then
    drawn full-width-data 48 8 0.1 12
    flags=(--architecture test_efficientnet --batch-size 16 --device cpu --workers 0 --amp off)
    flags+=(--compile off --picture-px 32 --progressive --serve-px 32 --epochs 3)
else
    drawn full-width-data 420 3 0.34 5337
    flags=(--workers "$(nproc)" --picture-px 320 --progressive --epochs 1000 --max-seconds 300)
    flags+=(--validate-every-epochs 1000)
fi
step full-width "$PYTHON" training/train.py b4_5337_scratch --data "$WORK/full-width-data-packed" \
    --run "$WORK/full-width" --auto-resume "${flags[@]}"
