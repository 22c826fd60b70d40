#!/usr/bin/env bash
# Downloads packages that a GPU machine with PyTorch and timm may lack to data/wheels (17 MB), in the versions of
# requirements.lock, for Python 3.12 (or PYTHON_VERSION) on x86-64 Linux.
#
# wheels.sh [service]    with `service`, also those of the service, for 3_service.sh (6 MB)
set -euo pipefail
cd "$(dirname "$0")/../.."
names='docstring-parser markdown-it-py mdurl msgspec pillow pillow-heif pygments rich simplejpeg tyro typeguard'
# For 0_first.sh, in the versions that pytest's settings in pyproject.toml ask for.
names+=' hypothesis iniconfig pluggy pytest pytest-timeout sortedcontainers'
if [[ ${1:-} == service ]]; then
    names+=' anyio click faker h11 httptools litestar litestar-htmx multidict multipart polyfactory prometheus-client pyyaml'
    names+=' rich-click sniffio structlog uvicorn'
fi
pins=()
for name in $names; do
    pins+=("$(grep -oE "^$name==[^ ]+" requirements.lock)")
done
platforms=()
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do
    platforms+=(--platform "${platform}_x86_64")
done
"${PYTHON:-python3}" -m pip download --quiet --no-deps --only-binary=:all: --implementation cp \
    --python-version "${PYTHON_VERSION:-3.12}" "${platforms[@]}" --dest data/wheels "${pins[@]}"
