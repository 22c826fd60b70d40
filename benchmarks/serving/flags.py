"""Flags and records that the benchmarks of the service share."""

from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from benchmarks.result import ROOT
from benchmarks.serving.photographs import PHOTOGRAPHS, Photograph, PhotographName, photographs
from benchmarks.serving.servers import Place
from models.bundle import Bundle, load_bundle

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
    out: Path | None = None
    """File for the result, JSON."""

    def without_paths(self) -> Self:
        """The flags as a result tells them: paths mean nothing on another machine."""
        return replace(self, bundle=None, photographs=None, environment=None, out=None)

    def place(self) -> Place:
        """The bundle and environment for all servers.

        Raises:
            BundleError: The bundle is missing or damaged.
        """
        bundle = load_bundle(self.bundle or DEMONSTRATION)
        return Place(bundle, self.environment or ENVIRONMENT)

    def pictures(self) -> dict[PhotographName, Photograph]:
        """The two photographs to send.

        Raises:
            DataError: They are not in the folder.
        """
        return photographs(self.photographs or PHOTOGRAPHS)


class Network(msgspec.Struct, frozen=True):
    """The network of all servers."""

    bundle: str
    architecture: str
    side_px: int
    num_outputs: int
    sha256: str
    """Hash of the ONNX file."""

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
