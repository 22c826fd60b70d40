# The service with its demonstration bundle, without PyTorch and training/.
#   docker build -t botanify .
#   docker run --read-only -p 8000:8000 botanify
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
# For a private package index; these values are not in the final image.
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX
WORKDIR /build
COPY pyproject.toml requirements.lock ./
# Installs uv with the version and hashes of the lock, in this stage only.
RUN sed -n '/^uv==/,/[^\\]$/p' requirements.lock > uv.txt \
    && python -m venv uv \
    && uv/bin/pip install --quiet --no-cache-dir --disable-pip-version-check \
        --require-hashes --no-deps --only-binary :all: -r uv.txt
# --system-certs: the base image of a company network may have that network's certificates.
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
# The bytecode is compiled above, because the root file system may be read-only.
ENV PATH=/opt/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001:10001
EXPOSE 8000
# Ignores proxy variables, because the check connects to this container itself.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/health/ready', timeout=4)"]
CMD ["python", "-m", "serving", "--host", "0.0.0.0", "--port", "8000"]
