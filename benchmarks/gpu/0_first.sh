#!/usr/bin/env bash
# 0. What a first machine with a GPU must tell, in one call: the tests that need a GPU, a short run that torchrun starts,
# the speed of our training loop and of timm's, and a profile of training steps. Failed tests do not
# stop the rest; the script then ends with 1.
source "$(dirname "$0")/bootstrap.sh"
keep . 'tests/gpu.xml' 'tests/gpu.txt' 'tests/torchrun.txt' 'loops.json' 'step_profile.json'

# Results name the card and its driver, which NVML tells them.
found='import sys, timm, torch
from training.machine import find_gpus
print("Python", sys.version.split()[0], "torch", torch.__version__, "timm", timm.__version__)
print(torch.cuda.get_device_name(), *find_gpus())
sys.exit(not find_gpus()[0])'
if [[ $TINY == 1 ]]; then
    # The same tests as on a GPU are collected, and the runs through Trainer take place on the CPU.
    found=pass chosen=(-m 'not slow' -k 'gpu or GPU or CPU') device=cpu
    pictures=(48 8 0.1 8)
    network=(--architecture test_efficientnet --num-outputs 20 --picture-px 32)
    loops=("${network[@]}" --amp off --batch-size 4 --rounds 1 --steps 2)
    profile=("${network[@]}" --batch-sizes 4 8 --workers 0)
else
    chosen=(-m gpu -k 'not compiled') device=cuda
    pictures=(440 40 0.1 24)
    loops=(--rounds 3 --steps 15)
    profile=(--workers "$(nproc)")
fi
if ! "$PYTHON" -c "$found"; then
    echo "error: PyTorch or NVML (libnvidia-ml.so.1) sees no GPU with $PYTHON; with TINY=1 the tests run on a CPU" >&2
    exit 1
fi
# Only files with such tests are read: others import the service's packages, which may be missing. Of the plugins that
# pyproject.toml names only the one for the time limit is loaded, and a warning is no error: both depend on that machine.
mapfile -t files < <(grep -rlF 'mark.gpu' tests --include='test_*.py' | sort)
mkdir -p "$WORK/tests"
gpu_tests() {
    # shellcheck disable=SC2016 # the inner shell expands them
    step "$1" env PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 bash -o pipefail -c '
        "${@:2}" 2>&1 | tee -a "$1/gpu.txt" || touch "$1/failed"' -- "$WORK/tests" "$PYTHON" -m pytest \
        -o addopts=--import-mode=importlib -p pytest_timeout -p no:cacheprovider -W default --tb=short \
        --durations=10 --junit-xml "$WORK/tests/$1.xml" "${@:2}" "${files[@]}"
}
gpu_tests gpu "${chosen[@]}"
# One rank under torchrun: on a GPU it joins NCCL.
# shellcheck disable=SC2016 # the inner shell expands them
step torchrun bash -o pipefail -c 'rm -rf "$2"; "${@:3}" 2>&1 | tee "$1"' -- "$WORK/tests/torchrun.txt" \
    "$WORK/torchrun" "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node 1 -- training/train.py debug \
    --data "$WORK/torchrun-data" --run "$WORK/torchrun" --device "$device" --epochs 4 --validate-every-epochs 2
step loops "$PYTHON" benchmarks/train_speed.py --device "$device" --arms ours timm "${loops[@]}" \
    --out "$WORK/loops.json"
drawn first "${pictures[@]}"
if [[ ! -e $WORK/done/step-profile ]] && (($(left) < 120)); then pause step-profile; fi
step step-profile "$PYTHON" benchmarks/gpu/step_profile.py --device "$device" --data "$WORK/first-packed" "${profile[@]}" \
    --seconds "$(($(left) - 45))" --out "$WORK/step_profile.json"
# Four tests compile, which takes as long as the others together.
if [[ $TINY != 1 ]] && (($(left) > 240)); then gpu_tests compiled -m gpu -k compiled; fi
if [[ -e $WORK/tests/failed ]]; then
    echo "tests failed: see gpu.txt" >&2
    exit 1
fi
