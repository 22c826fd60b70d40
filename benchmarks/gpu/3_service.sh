#!/usr/bin/env bash
# 3. The service on CUDA with EfficientNet-B4 at 380 px, 5,337 outputs and random weights in fp16: pictures a second
# against the network alone, by batch size, latency, the first request, and that it refuses to start without CUDA.
#
# Without the service's packages or an ONNX Runtime for CUDA it is skipped, and skipped.txt says why. To take them along:
# `wheels.sh service`, and the wheel of onnxruntime-gpu (255 MB) in parts as data/onnxruntime-gpu/part.*, see README.md.
source "$(dirname "$0")/bootstrap.sh"
keep service 'service/service.json' 'service/service.md' 'service/skipped.txt'

provider=cuda precision=fp16
network=(--fp16)
seconds=(--seconds 15)
if [[ $TINY == 1 ]]; then
    provider=cpu precision=fp32
    network+=(--architecture test_efficientnet --outputs 20 --px 64)
    seconds=(--seconds 1 --lead-in-s 0.5 --clients 4)
fi
if [[ -e data/onnxruntime-gpu/part.00 ]]; then
    if [[ ! -d data/site-gpu ]]; then
        cat data/onnxruntime-gpu/part.* >data/onnxruntime-gpu/wheel.zip
        "$PYTHON" -m zipfile -e data/onnxruntime-gpu/wheel.zip data/site-gpu
    fi
    export PYTHONPATH=$PWD/data/site-gpu${PYTHONPATH:+:$PYTHONPATH}
    # ONNX Runtime looks for CUDA beside itself; PyTorch's wheels brought it to another folder.
    LD_LIBRARY_PATH=$("$PYTHON" -c 'import glob, nvidia
print(":".join(found for place in nvidia.__path__ for found in glob.glob(f"{place}/*/lib")))')
    export LD_LIBRARY_PATH
fi
reason=$("$PYTHON" -c 'import sys
from importlib.util import find_spec
names = ("httptools", "litestar", "multidict", "multipart", "onnxruntime", "prometheus_client", "structlog", "uvicorn")
missing = [name for name in names if find_spec(name) is None]
if missing:
    print("not installed:", ", ".join(missing))
elif sys.argv[1] == "cuda":
    import onnxruntime
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        print(f"this onnxruntime ({onnxruntime.__version__}) is built without CUDA")' "$provider")
mkdir -p "$WORK/service"
if [[ -n $reason ]]; then
    echo "skipped: $reason" | tee "$WORK/service/skipped.txt"
    exit 0
fi
rm -f "$WORK/service/skipped.txt"
# shellcheck disable=SC2016 # the inner shell expands them
step service-network bash -c 'rm -rf "$0" && exec "$@"' "$WORK/service-bundle" "$PYTHON" \
    benchmarks/serving/network.py --out "$WORK/service-bundle" "${network[@]}"
# shellcheck disable=SC2016 # the inner shell expands them
step service-speed bash -o pipefail -c '"${@:2}" | tee "$1"' -- "$WORK/service/service.md" "$PYTHON" \
    benchmarks/gpu/service_speed.py --bundle "$WORK/service-bundle" --provider "$provider" --precision "$precision" \
    "${seconds[@]}" --out "$WORK/service/service.json"
