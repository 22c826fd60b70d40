"""The compared servers: their command lines, their configurations, and how to tell that they are ready."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec
import onnxruntime

from benchmarks.result import ROOT
from benchmarks.serving.http_client import ConnectionLost, fetch, get, post_picture
from benchmarks.serving.process_tree import ProcessTree, free_port
from benchmarks.serving.server_config import Arithmetic, Decoding, RivalName, RivalTask, ServerConfig, ServerName
from models.bundle import Bundle
from models.errors import DataError

IDENTIFY: Final = "/identify"
_RIVALS: Final = Path(__file__).resolve().parent / "rivals"
_READY_PATHS: Final[Mapping[ServerName, str]] = {
    "ours": "/health/ready",
    "FastAPI": "/ready",
    "LitServe": "/health",
    "BentoML": "/readyz",
}
_PACKAGES: Final = ("fastapi", "starlette", "uvicorn", "litserve", "bentoml", "onnxruntime", "numpy", "pillow")
_OWN_PACKAGES: Final = ("litestar", "uvicorn", "numpy", "pillow")
_START_S: Final = 120.0
_LOG_LINES: Final = 15


class Contender(msgspec.Struct, frozen=True, order=True):
    """A server and how it decodes pictures."""

    server: ServerName
    decoding: Decoding
    arithmetic: Arithmetic = "fp32"

    def __str__(self) -> str:
        if self.arithmetic == "bf16":
            return f"{self.server}, bf16"
        return self.server if self.server == "ours" or self.decoding == "full" else f"{self.server} with our decode"


class Place(msgspec.Struct, frozen=True):
    """The bundle, environment and checkout for all servers."""

    bundle: Bundle
    environment: Path
    """Virtual environment of the rivals."""
    ours: tuple[str, ...] = ()
    """Further flags for our service."""


class Running(msgspec.Struct, frozen=True):
    """A server that is ready."""

    contender: Contender
    port: int
    tree: ProcessTree
    start_s: float
    """Time from its start until it was ready, s."""


OURS: Final = Contender("ours", "reduced")
OURS_IN_BF16: Final = Contender("ours", "reduced", "bf16")


def candidates(server: ServerName, cores: int) -> Sequence[ServerConfig]:
    """The configurations to try: one run on all cores, or one run on each core, in threads or processes."""
    if server == "ours":
        return (ServerConfig(),)  # our service chooses its own
    a_core_each = ServerConfig(workers=cores)
    all_cores = ServerConfig(intra_op=cores, spinning=True)
    both = ServerConfig(workers=cores, intra_op=cores)
    if server == "LitServe":
        return (a_core_each, all_cores, both, ServerConfig(intra_op=cores, spinning=True, batch=4))
    return (a_core_each, ServerConfig(threads=cores), all_cores, both, ServerConfig(threads=cores, intra_op=cores))


def with_limits(server: RivalName, config: ServerConfig, patience_s: float) -> ServerConfig:
    """The configuration with the limits against overload that the server itself offers.

    FastAPI's uvicorn limits the connections of a process, BentoML the requests of the service and their time. LitServe
    drops requests that waited too long.
    """
    in_flight = 8
    if server == "FastAPI":
        return msgspec.structs.replace(config, max_in_flight=max(in_flight // config.workers, 2))
    if server == "LitServe":
        return msgspec.structs.replace(config, timeout_s=0.8 * patience_s)
    return msgspec.structs.replace(config, max_in_flight=in_flight, timeout_s=patience_s)


def require_environment(environment: Path, servers: Sequence[ServerName]) -> None:
    """Checks that the rivals' environment exists.

    Raises:
        DataError: A rival is to be measured, and there is no environment.
    """
    if any(server != "ours" for server in servers) and not _python(environment).exists():
        raise DataError(
            "the rivals have no environment",
            value=environment,
            limit="a virtual environment with benchmarks/serving/requirements.txt installed",
            remedy=f"run: python -m uv venv {environment} && python -m uv pip install --python "
            f"{_python(environment)} -r benchmarks/serving/requirements.txt (or name one with --environment)",
        )


def versions(environment: Path) -> dict[str, str]:
    """Versions of the rivals' packages; empty without their environment."""
    python = _python(environment)
    if not python.exists():
        return {}
    code = "import sys, importlib.metadata as m; print(*(m.version(name) for name in sys.argv[1:]))"
    printed = subprocess.run([python, "-c", code, *_PACKAGES], check=True, capture_output=True, text=True).stdout
    return dict(zip(_PACKAGES, printed.split(), strict=True))


def own_versions() -> dict[str, str]:
    """Versions of our service's packages; ONNX Runtime says its own, since two packages may install it."""
    return {name: version(name) for name in _OWN_PACKAGES} | {"onnxruntime": onnxruntime.__version__}


@contextmanager
def running(place: Place, contender: Contender, config: ServerConfig) -> Iterator[Running]:
    """Starts a server on a free port and yields it when it is ready; all its processes are killed at the end.

    Raises:
        DataError: The server ended, or was not ready in time; the message holds the end of its log.
    """
    port, began = free_port(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        folder = Path(scratch)
        command, more = _command(place, contender, config, port)
        environment = _environment(folder) | more
        log = folder / "log"
        with ProcessTree(command, environment=environment, log=log, folder=folder) as tree:
            _wait_until_ready(tree, contender, port, log)
            yield Running(contender, port, tree, time.monotonic() - began)


def top_outputs(contender: Contender, bundle: Bundle, answer: bytes) -> list[tuple[str, float]]:
    """The likeliest taxa of a server's answer: taxon id and score.

    Rivals answer with outputs. The scores of those of one taxon are summed, as in our service.
    """
    found = json.loads(answer)
    if contender.server == "ours":
        return [(each["taxon_id"], each["score"]) for each in found["predictions"]]
    taxon_ids = {output.key: output.taxon_id for output in bundle.taxonomy.outputs}
    scores: dict[str, float] = {}
    for each in found["outputs"]:
        taxon_id = taxon_ids[each["key"]]
        scores[taxon_id] = scores.get(taxon_id, 0.0) + each["score"]
    return sorted(scores.items(), key=lambda pair: pair[1], reverse=True)


def identify(picture: bytes, content_type: str = "image/jpeg") -> bytes:
    """The request for all servers."""
    return post_picture(IDENTIFY, picture, content_type=content_type)


def _command(place: Place, contender: Contender, config: ServerConfig, port: int) -> tuple[list[str], dict[str, str]]:
    """The command line of a server, and its further environment variables."""
    if contender.server == "ours":
        flags = ["--bundle", str(place.bundle.folder.resolve()), "--port", str(port)]
        flags += ["--precision", contender.arithmetic]
        flags += ["--provider", "openvino"] if contender.arithmetic == "bf16" else []
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # it may name packages, too
        return [sys.executable, "-m", "serving", *flags, *place.ours], {"PYTHONPATH": os.pathsep.join(paths)}
    network = place.bundle.network("fp32")
    task = RivalTask(
        network=str((place.bundle.folder / network.file).resolve()),
        input=place.bundle.record.input,
        temperature=network.temperature,
        decoding=contender.decoding,
        config=config,
        port=port,
    )
    python = str(_python(place.environment))
    if contender.server == "BentoML":
        flags = ["--host", "127.0.0.1", "--port", str(port), "--working-dir", str(_RIVALS)]
        return [python, "-m", "bentoml", "serve", "with_bentoml:Identification", *flags], task.as_environment()
    program = {"FastAPI": "with_fastapi.py", "LitServe": "with_litserve.py"}[contender.server]
    return [python, str(_RIVALS / program)], task.as_environment()


def _environment(scratch: Path) -> dict[str, str]:
    """This environment without our settings; servers write to the scratch folder only, and telemetry is off."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BOTANIFY_", "OMP_"))}
    isolated = {"BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": str(scratch / "bentoml"), "TMPDIR": str(scratch)}
    return kept | isolated | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def _wait_until_ready(tree: ProcessTree, contender: Contender, port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    request = get(_READY_PATHS[contender.server])
    while time.monotonic() < deadline and tree.alive:
        try:
            if asyncio.run(fetch(port, request)).status == 200:
                return
        except ConnectionLost:
            pass
        time.sleep(0.1)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    raise DataError(
        f"{contender} {'did not become ready in time' if tree.alive else 'ended at its start'}",
        value="its log: " + " | ".join(lines),
        limit=f"ready within {_START_S:g} s",
        remedy="correct its program or its configuration",
    )


def _python(environment: Path) -> Path:
    return environment.absolute() / "bin" / "python"
