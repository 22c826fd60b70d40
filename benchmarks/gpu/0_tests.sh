#!/usr/bin/env bash
# 0. The tests that need a GPU, and a short run that torchrun starts. Run them first: what fails is mended before anything
# is measured. A failed test ends the script with pytest's exit code; its results are copied nevertheless.
source "$(dirname "$0")/bootstrap.sh"
keep . 'tests/gpu.xml' 'tests/gpu.txt' 'tests/torchrun.txt'

found='import sys, timm, torch
print("Python", sys.version.split()[0], "torch", torch.__version__, "timm", timm.__version__)
print(torch.cuda.get_device_name())'
if [[ $TINY == 1 ]]; then
    # The same tests as on a GPU are collected, and the runs through Trainer take place on the CPU.
    found=pass chosen=(-m 'not slow' -k 'gpu or GPU or CPU') device=cpu
else
    chosen=(-m gpu) device=cuda
fi
if ! "$PYTHON" -c "$found"; then
    echo "error: $PYTHON sees no GPU; with TINY=1 the tests run on a CPU" >&2
    exit 1
fi
# Only files with such tests are read: others import the service's packages, which may be missing. Of the plugins only the
# one that pytest's settings need is loaded, and a warning is no error: both depend on the versions of that machine.
mapfile -t files < <(grep -rlF 'mark.gpu' tests --include='test_*.py' | sort)
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
mkdir -p "$WORK/tests"
# shellcheck disable=SC2016 # the inner shell expands them
whole_step gpu-tests bash -o pipefail -c '"${@:2}" 2>&1 | tee "$1"' -- "$WORK/tests/gpu.txt" "$PYTHON" -m pytest \
    -p pytest_timeout -p no:cacheprovider -W default --tb=short --durations=10 --junit-xml "$WORK/tests/gpu.xml" \
    "${chosen[@]}" "${files[@]}"
# One rank under torchrun: on a GPU it joins NCCL.
# shellcheck disable=SC2016 # the inner shell expands them
whole_step torchrun bash -o pipefail -c 'rm -rf "$2"; "${@:3}" 2>&1 | tee "$1"' -- "$WORK/tests/torchrun.txt" \
    "$WORK/torchrun" "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node 1 -- training/train.py debug \
    --data "$WORK/torchrun-data" --run "$WORK/torchrun" --device "$device" --epochs 4 --validate-every-epochs 2
