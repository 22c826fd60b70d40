"""Everything a run needs to go on as if nothing had happened, written so that a crash never leaves half a file."""

import zipfile
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from models.errors import CheckpointError
from training.atomic_file import replaced

FORMAT: Final = 3  # 1 counted batches; 2 knew no ranks, and its recipes had fewer sections
LAST: Final = "last.pt"
BEST: Final = "best.pt"


class DamagedCheckpoint(CheckpointError):
    """The file cannot be read, or is not as it was written."""


class Position(msgspec.Struct, frozen=True):
    """How far a run has come."""

    epoch: int = 0
    """Epochs finished."""
    pictures: int = 0
    """Pictures of the next epoch that are done already, on all ranks together."""
    step: int = 0
    """Optimizer steps since the run began."""
    best: float = -1.0
    """Best validation top-1 so far, a share; below 0: none yet."""
    seconds: float = 0.0
    """Time that the steps took so far, waits for pictures included and validations not."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment. Randomness needs no state: it is a function of seed, epoch, picture and step."""

    format: int = FORMAT
    architecture: str
    network: dict[str, Any]
    """Weights and BatchNorm statistics."""
    ema: dict[str, Any] | None
    """Moving average of the weights: what is validated and exported where it exists."""
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]
    scaler: dict[str, Any]
    position: dict[str, Any]
    recipe: dict[str, Any]
    """Resolved recipe, as plain values."""
    output_keys: list[str]
    """What each row of the classifier means."""
    manifest_sha256: str
    global_batch: int
    """Pictures of a batch on all ranks together."""
    git_commit: str
    trained_on: str
    """The device in words, for the model card."""

    @property
    def eval_weights(self) -> dict[str, Any]:
        """The weights that are validated and exported."""
        return self.ema if self.ema is not None else self.network


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint: whole and on disk when this returns, or the old file still stands."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as stream:
        torch.save(msgspec.structs.asdict(checkpoint), stream)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint to the CPU. Nothing in it is ever executed.

    Raises:
        CheckpointError: The file is missing, damaged, of another format, or no checkpoint of this project.
    """
    content = load_tensors(path)
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise CheckpointError(
            "the file is no checkpoint of this program", value=path, remedy="name last.pt or best.pt of a run"
        )
    if content["format"] != FORMAT:
        raise CheckpointError(
            f"the checkpoint {path} was written by another version of this program",
            value=f"format {content['format']}",
            limit=f"format {FORMAT}",
            remedy="use that version, or start a new run from its weights with --weights",
        )
    try:
        return Checkpoint(**content)
    except TypeError as error:
        raise DamagedCheckpoint(
            f"the checkpoint {path} is incomplete", value=error, remedy="use another one"
        ) from error


def load_tensors(path: Path) -> object:
    """Loads what `torch.save` wrote, refusing code. What torch does not, this compares every part with its checksum.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    if not path.is_file():
        raise CheckpointError("no such checkpoint", value=path, remedy="correct the path")
    try:
        _require_checksums(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, EOFError, ... by kind of damage
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise DamagedCheckpoint(
            f"the checkpoint {path} cannot be read", value=reason, remedy="use another one; it may be damaged"
        ) from error


def _require_checksums(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        return  # torch's older format has none
    with zipfile.ZipFile(path) as parts:
        wrong = parts.testzip()
    if wrong is not None:
        raise zipfile.BadZipFile(f"{wrong} is not as it was written")
