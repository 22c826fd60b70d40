"""Program: asks a service which plant the photographs show.

python -m serving.client leaf.jpg flower.jpg [--url http://127.0.0.1:8000] [--json]
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from models.program import explain_missing_packages, quiet_when_output_closes, read_flags

explain_missing_packages("run `make serve` once, or install the extra `client`")

import msgspec
import tyro

from models.errors import BotanifyError, InputError
from serving.client.clients import Client
from serving.schemas import Identification, Parameters

EXIT_NO_ANSWER: Final = 1
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell reports it
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # with which a server could command the terminal


class Ask(Parameters, frozen=True, kw_only=True):
    """Asks a service which plant the photographs show; several photographs show one plant."""

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
    try:
        with quiet_when_output_closes():
            _ask(read_flags(Ask, arguments, prog="python -m serving.client"))
    except (BotanifyError, OSError) as error:
        sys.stderr.write(f"botanify: {_harmless(_in_one_line(error))}\n")
        raise SystemExit(EXIT_NO_ANSWER) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def _ask(command: Ask) -> None:
    key = command.api_key or os.environ.get("BOTANIFY_API_KEY", "")
    with Client(command.url, api_key=key, timeout_s=command.timeout_s, max_side_px=command.max_side_px) as client:
        answer = client.identify_json(*command.photographs, parameters=command)
    if command.json:
        told = _harmless(answer.decode()).encode()
    else:
        words = in_words(msgspec.json.decode(answer, type=Identification))
        told = _harmless(words).encode(sys.stdout.encoding, "replace")
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


def _harmless(text: str) -> str:
    """Writes control characters as JSON does, in whose texts that changes nothing; tabs and line ends stay."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _in_one_line(error: BotanifyError | OSError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        remedy = "check the path; `python -m serving.identify_folder` takes folders"
        problem = f"the file {error.filename} cannot be read"
        return str(InputError(problem, value=error.strerror, limit="a photograph", remedy=remedy))
    return str(error)


if __name__ == "__main__":
    main()
