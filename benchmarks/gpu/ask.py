"""Program: identifies one picture with a bundle, in this process, with the service's preprocessing and answer.

python benchmarks/gpu/ask.py --bundle DIR --picture FILE [--out FILE.json]

A training machine may lack the packages of the service; this shows there that the bundle answers.
"""

import sys
import time
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro

from benchmarks.result import write_result
from models.answer import Question, answer_plant
from models.bundle import load_bundle
from models.preprocess import picture_to_input
from training.program import run_program


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies one picture with a bundle."""

    bundle: Path
    """Folder of the bundle."""
    picture: Path
    """The picture."""
    out: Path | None = None
    """JSON file for the reply."""


class Reply(msgspec.Struct, frozen=True):
    """The content of the file."""

    seconds: float
    """Seconds of the answer, once the bundle is open."""
    verdict: dict[str, Any]
    """Rank, name, score and reason."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: ask(tyro.cli(Ask, description=__doc__)))


def ask(command: Ask) -> Reply:
    """Identifies the picture, prints the reply and, with `out`, writes it.

    Raises:
        BundleError: The bundle is damaged.
        PictureError: The picture cannot be read.
    """
    bundle = load_bundle(command.bundle)
    session, model = bundle.open_session("fp32"), bundle.answer_model("fp32")
    began = time.perf_counter()
    pixels, _ = picture_to_input(command.picture.read_bytes(), bundle.record.input)
    output = session.run(pixels[None])
    found = answer_plant(output.logits, output.features, model, Question()).verdict
    reply = Reply(time.perf_counter() - began, msgspec.to_builtins(found))
    said = f"Answered in {reply.seconds:.2f} s: {found.rank}, {found.name}, score {found.score:.3f}"
    write_result(reply, said, command.out)
    return reply


if __name__ == "__main__":
    main()
