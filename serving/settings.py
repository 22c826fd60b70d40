"""Every knob of the service: flag > environment (BOTANIFY_*) > default. Help stands beside its field."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import tyro

from models.bundle import BUNDLE_FILE, Precision
from models.errors import InputError

ENVIRONMENT_PREFIX: Final = "BOTANIFY_"
RELEASES: Final = Path(__file__).resolve().parents[1] / "models" / "releases"

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identifies plants on photographs, over HTTP.

    Every flag can also be given in the environment: --max-waiting 32 is BOTANIFY_MAX_WAITING=32. Flags win.
    """

    bundle: Path | None = None
    """Folder of the released bundle; by default the one folder under models/releases/."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    port: Port = 8000
    """Port to listen on; 0 takes any free one."""
    precision: Precision | None = None
    """Which network of the bundle to run; by default the first it holds of fp32, fp16, int8."""
    provider: Literal["cpu", "cuda"] = "cpu"
    """Where the network runs; with cuda the service refuses to start when CUDA cannot be used."""
    num_threads: Count | None = None
    """Threads of one network run; by default the cores of the container, at most 4."""
    num_runs: Count | None = None
    """Network runs at the same time; by default as many as the cores carry."""
    num_decoders: Count | None = None
    """Pictures decoded at the same time, each up to a few hundred megabytes; by default one for each core."""
    max_picture_bytes: Count = 20_000_000
    """Largest picture, bytes."""
    max_request_bytes: Count = 60_000_000
    """Largest request, bytes."""
    max_requests: Count = 32
    """Identify requests held in memory at the same time, uploads included; more are refused before they are read."""
    max_active: Count = 4
    """Requests whose pictures are being decoded or run at the same time."""
    max_waiting: CountOrNone = 16
    """Requests that may wait for their turn; more are refused at once."""
    max_wait_s: Seconds = 5.0
    """Longest wait for a turn, seconds; after it the request is refused."""
    deadline_s: Seconds = 10.0
    """Longest time from the complete upload to the answer, seconds."""
    upload_s: Seconds = 60.0
    """Longest time for an upload, seconds."""


def load_settings(arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Reads flags and environment; ends the program for `--help` and for flags that do not exist.

    Args:
        arguments: Command line without the program's name; by default this process's.
        environment: By default this process's.

    Raises:
        InputError: A value is not of its field's kind or range; the message names the flag or variable.
    """
    found = _from_environment(os.environ if environment is None else environment)
    settings = tyro.cli(Settings, default=found, args=arguments, prog="python -m serving")
    try:
        # tyro builds the record without looking at the ranges, msgspec looks at them when it converts.
        return msgspec.convert(msgspec.structs.asdict(settings), Settings)
    except msgspec.ValidationError as error:
        raise InputError("a flag is out of its range", value=error, remedy="see python -m serving --help") from error


def find_bundle(settings: Settings, releases: Path = RELEASES) -> Path:
    """The bundle folder to serve: the one that was asked for, or the only one that was released.

    Raises:
        InputError: None was asked for and there is not exactly one.
    """
    if settings.bundle is not None:
        return settings.bundle
    found = sorted(path.parent for path in releases.glob(f"*/{BUNDLE_FILE}"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    raise InputError(
        f"no bundle was named and {releases} does not hold exactly one",
        value=names,
        remedy="name one with --bundle or BOTANIFY_BUNDLE",
    )


def _from_environment(environment: Mapping[str, str]) -> Settings:
    given = {
        name: environment[variable]
        for name in Settings.__struct_fields__
        if (variable := ENVIRONMENT_PREFIX + name.upper()) in environment
    }
    try:
        return msgspec.convert(given, Settings, strict=False, dec_hook=_read_path)
    except msgspec.ValidationError as error:
        raise InputError(
            f"a variable {ENVIRONMENT_PREFIX}* has a value that is not accepted",
            value=error,
            remedy="correct or unset it; see python -m serving --help",
        ) from error


def _read_path(kind: type[Any], text: Any) -> Any:
    """Turns text into the kinds that msgspec does not know, which are folders only."""
    return kind(text)
