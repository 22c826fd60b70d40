"""Program: asks a service which plant the photographs show.

python -m serving.client leaf.jpg flower.jpg [--url http://127.0.0.1:8000] [--json]
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from models.errors import InputError
from models.program import harmless, run_program
from serving.client.clients import Client
from serving.schemas import Identification, Parameters


class Ask(Parameters, frozen=True, kw_only=True):
    """Asks a service which plant the photographs show; all photographs of a call show one plant."""

    photographs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """One to five picture files."""
    url: str = os.environ.get("BOTANIFY_URL") or "http://127.0.0.1:8000"
    """Address of the service; also BOTANIFY_URL."""
    api_key: str = ""
    """Key, if the service needs one; better BOTANIFY_API_KEY, since others can see the command line."""
    timeout_s: float = 120.0
    """Longest time for the answer with all attempts, seconds."""
    max_side_px: int | None = None
    """Photographs with a longer side are reduced to it before they are sent; at least 224."""
    json: bool = False
    """Print the service's answer as it is, in JSON."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program: prints the answer, or one line about why there is none and exits with code 1.

    Args:
        arguments: Command line without the program's name; by default that of this process.
    """
    run_program(Ask, _ask, arguments, prog="python -m serving.client")


def _ask(command: Ask) -> None:
    key = command.api_key or os.environ.get("BOTANIFY_API_KEY", "")
    with Client(command.url, api_key=key, timeout_s=command.timeout_s, max_side_px=command.max_side_px) as client:
        try:
            answer = client.identify_json(*command.photographs, parameters=command)
        except OSError as error:
            if error.filename is None:
                raise
            problem = f"the file {error.filename} cannot be read"
            remedy = "check the path; `python -m serving.identify_folder` takes folders"
            raise InputError(problem, value=error.strerror, limit="a photograph", remedy=remedy) from error
    if command.json:
        told = harmless(answer.decode()).encode()
    else:
        words = in_words(msgspec.json.decode(answer, type=Identification))
        told = harmless(words).encode(sys.stdout.encoding, "replace")
    sys.stdout.buffer.write(told + b"\n")


def in_words(answer: Identification) -> str:
    """Returns an answer as a person reads it."""
    verdict = answer.verdict
    lines = [f"{verdict.name or verdict.rank.replace('_', ' ')}: {verdict.reason}"]
    width = max((len(each.scientific_name) for each in answer.predictions), default=0)
    lines += [
        f"  {each.score:6.1%}  {each.scientific_name:{width}}  {', '.join(each.common_names)}".rstrip()
        for each in answer.predictions
    ]
    if answer.candidates is not None:
        names = ", ".join(each.scientific_name for each in answer.candidates.taxa)
        lines.append(f"one of these {answer.candidates.num_taxa}: {names}")
    told = answer.place.reason if answer.place is not None else None
    if told is not None:
        lines.append(f"place: {told}")
    return "\n".join([*lines, *(f"note: {warning}" for warning in answer.warnings if warning != told)])


if __name__ == "__main__":
    main()
