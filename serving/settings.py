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
_LISTS: Final = frozenset({"trusted_proxies", "cors_origins"})
RELEASES: Final = Path(__file__).resolve().parents[1] / "models" / "releases"

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0.0)]
SecondsOrZero = Annotated[float, msgspec.Meta(ge=0.0)]
Rate = Annotated[float, msgspec.Meta(gt=0.0)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identifies plants on photographs, over HTTP.

    Every flag can also be given in the environment: --deadline-s 5 is BOTANIFY_DEADLINE_S=5. Flags win. Lists are
    separated by spaces in flags and by commas in the environment.
    """

    bundle: Path | None = None
    """Folder of the released bundle; by default the one folder under models/releases/."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    port: Port = 8000
    """Port to listen on; 0 takes any free one."""
    precision: Precision | None = None
    """Which network of the bundle to run; by default the fastest it holds for the device."""
    provider: Literal["cpu", "cuda"] = "cpu"
    """Where the network runs; with cuda the service refuses to start when CUDA cannot be used."""
    num_threads: Count | None = None
    """Threads of one network run on a CPU; by default all cores when alone, and one when busy."""
    num_runs: Count | None = None
    """Network runs at the same time; by default one a core, or two batches on a GPU."""
    num_decoders: Count | None = None
    """Processes that decode pictures; by default one for each core."""
    max_picture_bytes: Count = 20_000_000
    """Largest picture, bytes."""
    max_request_bytes: Count = 60_000_000
    """Largest request, bytes."""
    max_requests: Count | None = None
    """Identify requests taken on at the same time, uploads included; by default 64, or 512 with a GPU."""
    max_held_bytes: Count = 256_000_000
    """Memory for uploads, bytes; what would need more is refused before it is read."""
    max_wait_s: Seconds = 1.0
    """Longest expected wait for the work ahead, seconds; a request that would wait longer is refused before it is read,
    though seven pictures may always be ahead."""
    deadline_s: Seconds = 10.0
    """Longest time from the complete upload to the answer, seconds; a client may ask for less with `Prefer: wait=`."""
    upload_s: Seconds = 60.0
    """Longest time for an upload, seconds."""
    min_upload_bytes_per_s: Count = 16_384
    """Slowest upload, bytes a second on average after the first five seconds."""
    header_s: Seconds = 10.0
    """Longest time for the head of a request, seconds."""
    decode_s: Seconds = 5.0
    """Longest time for one picture to decode, seconds; then the process that decodes it is killed and replaced."""
    decode_child_bytes: Count = 768_000_000
    """Memory that one picture may take while it is decoded, bytes."""
    decode_budget_bytes: Count = 512_000_000
    """Memory that all the decodes in flight may take, bytes; a picture that alone takes more is decoded alone."""
    drain_s: SecondsOrZero = 5.0
    """Seconds after SIGTERM in which requests are still accepted, so that a load balancer can notice."""
    api_keys: str = ""
    """Keys that may ask, one a line or separated by commas: NAME HASH [admin], as `python -m serving.access.keys NAME`
    prints them. With none here and none in a file, everybody may ask."""
    api_keys_file: Path | None = None
    """File with such lines."""
    rate_per_minute: Rate | None = None
    """Requests a minute that each key, or each address without one, may send; by default as many as it likes."""
    rate_burst: Count = 20
    """Requests that may come at once before the rate counts."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose X-Forwarded-For tells the client's address."""
    cors_origins: tuple[str, ...] = ()
    """Pages of other origins that may ask, such as https://garden.example."""


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
    given: dict[str, Any] = {
        name: environment[variable]
        for name in Settings.__struct_fields__
        if (variable := ENVIRONMENT_PREFIX + name.upper()) in environment
    }
    for name in _LISTS & given.keys():
        given[name] = [part.strip() for part in given[name].split(",") if part.strip()]
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
