# The service and its bundle, without PyTorch and without training/.
#   docker build -t botanify .
#   docker run --read-only -p 8000:8000 botanify
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
# Set these only to install from a package index of your own; they do not reach the final image.
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX
WORKDIR /build
COPY pyproject.toml requirements.lock ./
# uv comes from its own hash-pinned lines in the lock, and stays in this stage.
RUN sed -n '/^uv==/,/[^\\]$/p' requirements.lock > uv.txt \
    && python -m venv uv \
    && uv/bin/pip install --quiet --no-cache-dir --disable-pip-version-check \
        --require-hashes --no-deps --only-binary :all: -r uv.txt
# --system-certs: a base image made for a company's network holds the certificates of that network.
RUN python -m venv --without-pip /opt/venv \
    && uv/bin/uv pip install --python /opt/venv/bin/python --no-cache --compile-bytecode --system-certs \
        --constraints requirements.lock --verify-hashes --only-binary :all: -r pyproject.toml --extra serve
COPY models/ /app/models/
COPY serving/ /app/serving/
RUN python -m compileall -q /app

FROM ${BASE}
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin botanify
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
COPY LICENSE /app/
# Bytecode is compiled above, and the root file system may be read-only.
ENV PATH=/opt/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001:10001
EXPOSE 8000
# Without a proxy: the question is about this container only.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/health/ready', timeout=4)"]
CMD ["python", "-m", "serving", "--host", "0.0.0.0", "--port", "8000"]
