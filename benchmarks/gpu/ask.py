"""Program: identifies one picture with a bundle, through the service if it is installed.

python benchmarks/gpu/ask.py --bundle DIR --picture FILE [--out FILE.json]

A training machine may lack the service's packages. There this process runs the bundle, with the same preprocessing,
session and ranking as the service.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal
from urllib.request import Request, urlopen

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro

from models.answer import Question, answer_plant
from models.bundle import load_bundle
from models.errors import BundleError
from models.preprocess import picture_to_input
from training.atomic_file import replaced
from training.program import run_program

_ROOT: Final = Path(__file__).resolve().parents[2]
_HOST: Final = "127.0.0.1"
_START_S: Final = 120.0
_ANSWER_S: Final = 60.0
_LOOK_S: Final = 0.5


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies one picture with a bundle."""

    bundle: Path
    """Folder of the bundle."""
    picture: Path
    """The picture."""
    out: Path | None = None
    """JSON file for the reply."""


class Reply(msgspec.Struct, frozen=True):
    """The reply, and who gave it."""

    asked: Literal["the service", "the bundle in process"]
    why: str
    """Why it was asked."""
    seconds: float
    """Seconds from the request to the reply."""
    verdict: dict[str, Any]
    """Rank, name, score and reason."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: ask(tyro.cli(Ask, description=__doc__)))


def ask(command: Ask) -> Reply:
    """Identifies the picture, prints the reply and, with `out`, writes it.

    Raises:
        BundleError: The bundle is damaged, or the service does not start with it or refuses the picture.
        PictureError: The picture cannot be read.
    """
    picture = command.picture.read_bytes()
    reply = _through_service(command.bundle, picture) if _has_service() else _in_process(command.bundle, picture)
    score = reply.verdict["score"]
    print(
        f"{reply.asked.capitalize()} answered ({reply.why}) in {reply.seconds:.2f} s: {reply.verdict['rank']}, "
        f"{reply.verdict['name']}, score {score:.3f}"
    )
    if command.out is not None:
        with replaced(command.out) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(reply)) + b"\n")
    return reply


def _has_service() -> bool:
    return find_spec("litestar") is not None


def _in_process(folder: Path, picture: bytes) -> Reply:
    bundle = load_bundle(folder)
    session, model, record = bundle.open_session("fp32"), bundle.answer_model("fp32"), bundle.record
    began = time.perf_counter()
    pixels, _ = picture_to_input(picture, record.input)
    output = session.run(pixels[None])
    found = answer_plant(output.logits, output.features, model, Question())
    seconds, verdict = time.perf_counter() - began, msgspec.to_builtins(found.verdict)
    return Reply("the bundle in process", "litestar is not installed", seconds, verdict)


def _through_service(folder: Path, picture: bytes) -> Reply:
    with _service(folder) as address:
        request = Request(f"{address}/identify", picture, {"Content-Type": "image/jpeg"})
        began = time.perf_counter()
        answer = _answer(request)
        return Reply("the service", "litestar is installed", time.perf_counter() - began, answer["verdict"])


def _answer(request: Request) -> dict[str, Any]:
    try:
        with urlopen(request, timeout=_ANSWER_S) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except OSError as error:  # includes HTTP errors
        raise BundleError("the service does not answer", value=error, remedy="its log above says why") from error


@contextmanager
def _service(folder: Path) -> Iterator[str]:
    """Runs the service on a free port and yields its address once it is ready."""
    with socket.create_server((_HOST, 0)) as free:
        port = free.getsockname()[1]
    command = (sys.executable, "-m", "serving", "--host", _HOST, "--port", str(port), "--bundle", str(folder.resolve()))
    with subprocess.Popen(command, cwd=_ROOT) as process:
        try:
            address = f"http://{_HOST}:{port}"
            _wait_until_ready(process, address)
            yield address
        finally:
            process.terminate()


def _wait_until_ready(process: subprocess.Popen[bytes], address: str) -> None:
    ends = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < ends:
        with suppress(OSError), urlopen(f"{address}/health/ready", timeout=_ANSWER_S):
            return
        time.sleep(_LOOK_S)
    raise BundleError(
        "the service does not become ready",
        value=f"exit code {process.poll()}" if process.poll() is not None else f"{_START_S:.0f} s",
        remedy="its log above says why",
    )


if __name__ == "__main__":
    main()
