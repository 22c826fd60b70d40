#!/usr/bin/env bash
# 2. The reference recipe from shards for five minutes (b4_5337_scratch at 320 px, with pictures of 420 px), and the time
# of an epoch of 1.6 million pictures by it.
source "$(dirname "$0")/bootstrap.sh"
keep epoch-time 'epoch-time.json' 'epoch-time/log.jsonl'

if [[ $TINY == 1 ]]; then
    drawn epoch-time-data 48 8 0.1 12
    flags=(--architecture test_efficientnet --batch-size 16 --workers 0 --amp off --compile off)
    flags+=(--picture-px 32 --progressive --serve-px 32 --epochs 3)
else
    drawn epoch-time-data 420 3 0.34 5337
    flags=(--workers "$(nproc)" --picture-px 320 --progressive --epochs 1000 --max-seconds 300)
    flags+=(--validate-every-epochs 1000)
fi
step epoch-time-trained "$PYTHON" training/train.py b4_5337_scratch --data "$WORK/epoch-time-data-packed" \
    --run "$WORK/epoch-time" --auto-resume "${flags[@]}"
step epoch-time "$PYTHON" benchmarks/gpu/epoch_time.py "$WORK/epoch-time" --out "$WORK/epoch-time.json"
