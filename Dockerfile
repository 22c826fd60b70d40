# Images of the service and of training. Each holds only what it needs.
#   docker build -t botanify .                                the service on a CPU, without PyTorch
#   docker build --target gpu -t botanify:gpu .               the service on an NVIDIA GPU
#   docker build --target folders -t botanify:folders .       python -m serving.identify_folder on a CPU
#   docker build --target train -t REGISTRY/botanify-train .  training, with PyTorch
#   docker run --read-only -p 8000:8000 botanify
# gpu and train need the NVIDIA container toolkit; their Python packages bring CUDA.
ARG BASE=python:3.13-slim

# ---- packages, each set in an environment of its own

FROM ${BASE} AS uv
# For a private package index; these values are not in the final image.
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX
WORKDIR /build
COPY pyproject.toml requirements.lock ./
# Installs uv with the version and hashes of the lock, in this stage only.
RUN sed -n '/^uv==/,/[^\\]$/p' requirements.lock > uv.txt \
    && python -m venv uv \
    && uv/bin/pip install --quiet --no-cache-dir --disable-pip-version-check \
        --require-hashes --no-deps --only-binary :all: -r uv.txt \
    && python -m venv --without-pip /opt/venv
# --system-certs: the base image of a company network may have that network's certificates.
ENV INSTALL="uv/bin/uv pip install --python /opt/venv/bin/python --no-cache --compile-bytecode --system-certs \
    --constraints requirements.lock --verify-hashes --only-binary :all: -r pyproject.toml"

FROM uv AS cpu-packages
# The packages bring their tests and the data for these.
RUN ${INSTALL} --extra serve --extra corrections \
    && find /opt/venv -type d \( -name tests -o -path '*/onnx/backend/test' \) -prune -exec rm -r {} +

FROM uv AS gpu-packages
RUN ${INSTALL} --extra serve-gpu --extra corrections

FROM uv AS folders-packages
RUN ${INSTALL} --extra serve --extra folders

FROM uv AS train-packages
RUN ${INSTALL} --extra train

# ---- the programs

FROM ${BASE} AS program
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin botanify
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 ORT_DISABLE_TELEMETRY=1
WORKDIR /app
COPY LICENSE ./
COPY models/ models/

FROM program AS service
COPY serving/ serving/
# Compiled here, because the root file system may be read-only.
RUN python -m compileall -q .
ENV PYTHONDONTWRITEBYTECODE=1
# For BOTANIFY_CORRECTIONS: a new volume takes the owner of the folder.
RUN install --directory --owner 10001 --group 10001 /corrections
USER 10001:10001
EXPOSE 8000
# The start may take longer than the service waits for the first run of its network (300 s); it is healthy as soon as it
# answers. Ignores proxy variables, because the check connects to this container itself.
HEALTHCHECK --interval=10s --timeout=5s --start-period=360s --retries=3 \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/health/ready', timeout=4)"]
CMD ["python", "-m", "serving", "--host", "0.0.0.0", "--port", "8000"]

FROM program AS folders
COPY --from=folders-packages /opt/venv /opt/venv
COPY serving/ serving/
USER 10001:10001
ENTRYPOINT ["python", "-m", "serving.identify_folder"]

FROM program AS train
# torch.compile needs a C compiler.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# For what PyTorch and timm keep between runs.
ENV HOME=/tmp
COPY --from=train-packages /opt/venv /opt/venv
COPY training/ training/
COPY deploy/torchrun.sh deploy/
USER 10001:10001
CMD ["deploy/torchrun.sh"]

FROM service AS gpu
COPY --from=gpu-packages /opt/venv /opt/venv
ENV BOTANIFY_PROVIDER=cuda

# The last stage is the default.
FROM service AS cpu
COPY --from=cpu-packages /opt/venv /opt/venv
