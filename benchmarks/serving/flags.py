"""Flags and helpers that the benchmarks of the service share."""

import shlex
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from benchmarks.serving.photographs import PHOTOGRAPHS, Photograph, PhotographName, drawn_photographs, photographs
from benchmarks.serving.servers import ROOT, Place
from benchmarks.serving.turns import Turns
from models.bundle import Bundle, load_bundle
from models.errors import DataError, RecipeError
from training.atomic_file import replaced
from training.machine import Machine

AnyFlags = TypeVar("AnyFlags", bound="Flags")
AnyResult = TypeVar("AnyResult", bound=msgspec.Struct)
ENVIRONMENT: Final = Path(__file__).resolve().parent / ".venv"
DEMONSTRATION: Final = ROOT / "models" / "releases" / "garden_and_wild_plants"


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of all benchmarks of the service."""

    bundle: Path | None = None
    """Bundle whose fp32 network every server runs; default: the demonstration bundle. network.py writes one of full
    size."""
    photographs: Path | None = None
    """Folder with phone_12mp.heic and other photographs; default: ../shared/data/photos."""
    environment: Path | None = None
    """Virtual environment of the rivals, with requirements.txt installed; default: .venv beside this program."""
    source: Path | None = None
    """Checkout whose service is measured; default: this one."""
    ours: str = ""
    """Further flags for our service, as in --ours="--max-wait-s 1"."""
    quick: bool = False
    """A run of seconds with generated pictures, to check that everything works."""
    note: str = ""
    """Remark on this run, for readers of the result."""
    out: Path | None = None
    """File for the result, JSON. Finished turns are stored beside it: the same command continues an interrupted run."""

    def place(self) -> Place:
        """The bundle, environment and checkout for all servers.

        Raises:
            BundleError: The bundle is missing or damaged.
        """
        bundle = load_bundle(self.bundle or DEMONSTRATION)
        return Place(bundle, self.environment or ENVIRONMENT, tuple(shlex.split(self.ours)), self.source or ROOT)

    def pictures(self) -> dict[PhotographName, Photograph]:
        """The two photographs to send.

        Raises:
            DataError: They are not in the folder.
        """
        return drawn_photographs() if self.quick else photographs(self.folder)

    @property
    def folder(self) -> Path:
        """Folder of the photographs."""
        return self.photographs or PHOTOGRAPHS


def require_positive(command: Flags, *names: str) -> None:
    """Checks that flags are above zero.

    Raises:
        RecipeError: A flag is zero or less.
    """
    for name in names:
        if getattr(command, name) <= 0:
            flag = name.replace("_", "-")
            raise RecipeError(
                f"nothing would be measured with --{flag}",
                value=getattr(command, name),
                limit="more than 0",
                remedy=f"raise --{flag}",
            )


class Network(msgspec.Struct, frozen=True):
    """The network of all servers."""

    bundle: str
    architecture: str
    side_px: int
    num_outputs: int
    sha256: str
    """Hash of the ONNX file."""

    @property
    def is_reference(self) -> bool:
        """Whether this is the network that the goals apply to."""
        return (self.architecture, self.side_px) == ("efficientnet_b4", 380)

    def __str__(self) -> str:
        return f"{self.architecture}, {self.side_px} px, {self.num_outputs:,} outputs ({self.bundle}), fp32"


class PictureFile(msgspec.Struct, frozen=True):
    """A photograph of a benchmark."""

    name: str
    megapixels: float
    num_bytes: int


def network_of(bundle: Bundle) -> Network:
    """Describes the fp32 network of a bundle."""
    record, file = bundle.record, bundle.network("fp32").file
    architecture = record.architecture
    return Network(record.name, architecture.name, record.input.width, architecture.num_outputs, record.files[file])


def picture_file(photograph: Photograph) -> PictureFile:
    """Describes a photograph."""
    return PictureFile(photograph.name, round(photograph.megapixels, 2), len(photograph.data))


def for_readers(command: AnyFlags) -> AnyFlags:
    """The flags without paths, which mean nothing on another machine."""
    return msgspec.structs.replace(command, bundle=None, photographs=None, environment=None, source=None, out=None)


def turns_of(command: Flags, machine: Machine) -> Turns:
    """The turns of a run, stored beside its result.

    Raises:
        DataError: The stored turns belong to another run.
    """
    kept = None if command.quick else command.out
    return Turns(kept, msgspec.json.encode((machine, command), enc_hook=str))


def read_result(path: Path, kind: type[AnyResult]) -> AnyResult:
    """Reads a result.

    Raises:
        DataError: The file is missing, damaged or of another version.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind, dec_hook=_path)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(
            f"{path.name} is not a result of this version", value=error, remedy="measure again, or restore the file"
        ) from error


def write_result(result: msgspec.Struct, out: Path | None) -> None:
    """Writes a result, if a path is given.

    Raises:
        OSError: The file cannot be written.
    """
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replaced(out) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(result)) + b"\n")


def _path(kind: type[Path], text: object) -> Path:
    return kind(str(text))
