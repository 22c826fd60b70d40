"""The settings of the service: flag > environment variable (BOTANIFY_*) > default."""

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import msgspec

from models.bundle import BUNDLE_FILE
from models.bundle_record import Precision, Provider
from models.errors import InputError
from models.program import path_fields, read_flags, valid

ENVIRONMENT_PREFIX: Final = "BOTANIFY_"
# What the client and the tests of this repository read.
_OF_OTHERS: Final = frozenset({"BOTANIFY_URL", "BOTANIFY_PHOTOS", "BOTANIFY_SCREENSHOTS"})
_LISTS: Final = frozenset({"trusted_proxies", "cors_origins"})
RELEASES: Final = Path(__file__).resolve().parents[1] / "models" / "releases"

# Every range is finite, because infinite numbers start a service that fails at each request.
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Workers = Annotated[int, msgspec.Meta(ge=1, le=1_024)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0.001, le=86_400.0)]
SecondsOrZero = Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)]
Share = Annotated[float, msgspec.Meta(ge=0.001, le=1.0)]
Rate = Annotated[float, msgspec.Meta(ge=0.001, le=1_000_000.0)]

DECODE_BUDGET_BYTES: Final = 512_000_000


class ModelOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which bundle answers, and how its network runs."""

    bundle: Path | None = None
    """Folder of the bundle; by default the only one in models/releases/."""
    taxa_lists: Path | None = None
    """Folder of lists that requests choose with taxa=list:NAME: one file NAME.txt per list, one name of a genus, family
    or species per line; # starts a comment. Read at the start and on reload."""
    plantnet_api: bool = False
    """Also answer the interface of Pl@ntNet below /v2, so that programs written for it can use this service."""
    precision: Precision | None = None
    """Precision of the network to run; by default the fastest one in the bundle for the device."""
    provider: Provider = "cpu"
    """What runs the network; the service does not start if it is not available. openvino is for a CPU too, and needs
    the extra serve-openvino: it is faster on a processor with bfloat16, for bundles with the precision bf16."""
    num_threads: Workers | None = None
    """Threads of one network run on a CPU; by default all cores for a single request, and one per run under load."""
    num_runs: Workers | None = None
    """Network runs at the same time; by default one per core, or two batches on a GPU."""


class Settings(ModelOptions, frozen=True, forbid_unknown_fields=True):
    """Identifies plants on photographs, over HTTP.

    Every flag is also an environment variable: --deadline-s 5 is BOTANIFY_DEADLINE_S=5. Flags take precedence. List
    items are separated by spaces in flags and by commas in environment variables.
    """

    corrections: Path | None = None
    """Folder for corrections: what people say about answers, with the pictures that they send again; by default nothing
    is kept. Needs the extra corrections."""
    corrections_database: str = ""
    """Address of a PostgreSQL database for corrections: postgresql+psycopg://USER:PASSWORD@HOST/NAME; by default an
    SQLite file in that folder."""
    corrections_bytes: Bytes = 10_000_000_000
    """Most bytes of all pictures of corrections."""
    corrections_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] = 365
    """How long corrections are kept, days."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 accepts connections from other machines, and a terminal then shows the
    address in the home network with a QR code."""
    port: Port = 8000
    """Port to listen on; 0 chooses a free one."""
    metrics: str | None = None
    """Where the metrics alone are served: PORT, or HOST:PORT for another address than --host; by default they are at
    /metrics on the service's own port."""
    num_decoders: Workers | None = None
    """Processes that decode pictures; by default one per core."""
    max_picture_bytes: Bytes = 20_000_000
    """Largest picture, bytes."""
    max_request_bytes: Bytes = 60_000_000
    """Largest request, bytes."""
    max_requests: Count | None = None
    """Identify requests accepted at the same time, uploads included; by default 64, or 512 on a GPU."""
    max_held_bytes: Bytes = 256_000_000
    """Memory for uploads, bytes. They count as they arrive; what would need more is refused."""
    max_wait_s: Seconds = 1.0
    """Longest expected wait of a request, seconds; one that would wait longer is refused before it is read.
    A wait behind seven pictures or fewer is always accepted."""
    client_share: Share = 0.5
    """Share of --max-requests, --max-held-bytes and --num-decoders that a client may use while other clients are there;
    a client alone may use everything."""
    deadline_s: Seconds = 10.0
    """Longest time from the complete upload to the answer, seconds; a client can shorten it with `Prefer: wait=`."""
    upload_s: Seconds = 60.0
    """Longest time for an upload, seconds; one that is slower than 16 kB per second is refused earlier."""
    decode_s: Seconds = 5.0
    """Processor time for decoding all pictures of a request, seconds; a request that needs more is refused."""
    decode_budget_bytes: Bytes = DECODE_BUDGET_BYTES
    """Memory that all decodes in progress may take, bytes; a picture that needs more is decoded alone."""
    drain_s: SecondsOrZero = 5.0
    """How long requests are still accepted after SIGTERM, seconds, so that a load balancer notices the shutdown."""
    shutdown_s: Seconds = 25.0
    """Longest time from SIGTERM to the exit, seconds. Requests that are left two seconds before the end get 503.
    Kubernetes kills after 30 s."""
    keep_alive_s: Seconds = 75.0
    """How long an idle connection is kept open, seconds; longer than the 60 s of most load balancers, so that they and
    not the service close it."""
    api_keys: str = ""
    """API keys, one per line or separated by commas: NAME HASH [admin], as `python -m serving.access.keys NAME` prints
    them, and NUMBER/day for a key with a quota. Without this and a file, no key is needed."""
    api_keys_file: Path | None = None
    """File with API keys, one per line; if it has none, no key is valid. Read at the start and on reload."""
    rate_per_minute: Rate | None = None
    """Requests per minute and API key, or per address if the service has no keys; by default unlimited."""
    rate_burst: Count = 20
    """Requests that a client may send at once before the rate applies."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose X-Forwarded-For header is trusted to name the client."""
    cors_origins: tuple[str, ...] = ()
    """Origins of other web pages that may send requests, such as https://garden.example."""


def load_settings(arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Reads the flags and the environment, by default of this process; exits on `--help` and on unknown flags.

    Raises:
        InputError: A value has the wrong type or is out of range, or a variable is unknown; the message names it.
    """
    defaults = _from_environment(os.environ if environment is None else environment)
    settings: Settings = read_flags(Settings, arguments, default=defaults, prog="python -m serving")
    if settings.drain_s >= settings.shutdown_s:
        raise InputError(
            "--drain-s leaves no time to finish requests",
            value=f"{settings.drain_s:g} s",
            limit=f"less than --shutdown-s, which is {settings.shutdown_s:g} s",
            remedy="lower --drain-s or raise --shutdown-s",
        )
    metrics_address(settings)
    return settings


def metrics_address(settings: Settings) -> tuple[str, int] | None:
    """Returns the address and the port of the metrics, or None if they have no port of their own.

    Raises:
        InputError: `settings.metrics` is neither PORT nor HOST:PORT.
    """
    if settings.metrics is None:
        return None
    host, _, port = settings.metrics.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535):
        raise InputError(
            "--metrics is not valid",
            value=repr(settings.metrics[:80]),
            limit="PORT or HOST:PORT with a port up to 65535",
            remedy="write it as 9100, 127.0.0.1:9100 or [::1]:9100",
        )
    return host.strip("[]") or settings.host, int(port)


def find_bundle(bundle: Path | None, releases: Path = RELEASES) -> Path:
    """Returns the folder of the bundle to use: the one that was given, or the only one in `releases`.

    Raises:
        InputError: None was given, and `releases` does not hold exactly one.
    """
    if bundle is not None:
        return bundle
    found = sorted(path.parent for path in releases.glob(f"*/{BUNDLE_FILE}"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    raise InputError(
        f"no bundle was given and {releases} does not hold exactly one",
        value=names,
        remedy="choose one with --bundle or BOTANIFY_BUNDLE",
    )


def _from_environment(environment: Mapping[str, str]) -> Settings:
    kinds = get_type_hints(Settings, include_extras=True)
    names = {ENVIRONMENT_PREFIX + name.upper(): name for name in kinds}
    paths = dict(path_fields(Settings))
    given: dict[str, Any] = {}
    for variable, text in environment.items():
        if variable in names:
            name = names[variable]
            if not text and name in paths:  # as Compose writes a variable that is not set
                continue
            value = [part.strip() for part in text.split(",") if part.strip()] if name in _LISTS else text
            given[name] = valid(value, kinds[name], variable, strict=False, dec_hook=lambda kind, path: kind(path))
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable not in _OF_OTHERS:
            [nearest] = get_close_matches(variable, names, 1, 0.0)
            raise InputError(
                f"the environment variable {variable} is not a setting",  # a misspelt one could open the service
                limit=f"one that python -m serving --help lists, such as {nearest}",
                remedy="correct or unset it",
            )
    return Settings(**given)
