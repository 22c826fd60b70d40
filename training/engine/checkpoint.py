"""The checkpoint file, from which a run continues exactly, and the checkpoints of a run.

No random state is stored: all randomness is a function of seed, epoch, picture and step. Files are written atomically,
read without executing code in them, and checked with checksums.
"""

import math
import os
import re
import shutil
import zipfile
from argparse import Namespace
from pathlib import Path, PosixPath
from typing import Any, Final

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from models.atomic_file import remove_leftovers, replaced
from models.errors import CheckpointError
from models.network import PlantNetwork

FORMAT: Final = 3  # 1 counted batches; 2 had no ranks and fewer recipe sections
LAST: Final = "last.pt"
BEST: Final = "best.pt"
KEPT: Final = 3
"""Newest checkpoints that a run keeps, besides the best one."""
_STEPS: Final = "step-*.pt"
_INERT: Final[list[Any]] = [
    *(Namespace, PosixPath, np.dtype, *(type(np.dtype(kind)) for kind in "?bhilBHILefd")),
    *((np.float64(0).__reduce__()[0], f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]
"""What other programs keep beside their weights: settings, paths and NumPy's numbers."""


class DamagedCheckpoint(CheckpointError):
    """The file cannot be read, or its content has changed since it was written."""


class Position(msgspec.Struct, frozen=True):
    """The progress of a run."""

    epoch: int = 0
    """Epochs finished."""
    pictures: int = 0
    """Pictures of the current epoch that were trained on, on all ranks together."""
    step: int = 0
    """Optimizer steps since the start of the run."""
    best: float = -1.0
    """Best validation top-1 so far, in [0, 1]; negative before the first validation."""
    best_loss: float = math.inf
    """Loss of that validation; infinite if it is unknown."""
    seconds: float = 0.0
    """Training time so far, including waits for pictures, excluding validations."""
    validated: int = 0
    """Step of the last validation; 0 before the first."""

    def validated_with(self, top1: float, loss: float) -> tuple["Position", bool]:
        """The position after a validation, and whether it is the best; top-1 is often the same, so the loss counts."""
        is_best = (top1, -loss) > (self.best, -self.best_loss)
        best = {"best": top1, "best_loss": loss} if is_best else {}
        return replace(self, validated=self.step, **best), is_best


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one step."""

    format: int = FORMAT
    architecture: str
    network: dict[str, Any]
    """Weights and BatchNorm statistics."""
    ema: dict[str, Any] | None
    """Moving average of the weights; if there is one, it is validated and exported."""
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]
    scaler: dict[str, Any]
    position: dict[str, Any]
    recipe: dict[str, Any]
    """Resolved recipe as plain values, and in `pictures` the normalization, which is no setting."""
    output_keys: list[str]
    """Key of each classifier row."""
    manifest_sha256: str
    """Hash of the manifest that the run reads: a run resumes with the same manifest only."""
    global_batch: int
    """Pictures of a batch on all ranks together."""
    git_commit: str
    """Commit of botanify that trained the network, or "unknown"."""
    trained_on: str
    """Name of the device, for the model card."""
    plant_output: dict[str, Any] | None = None
    """With pictures that show no plant: the auxiliary output's `weights` and `averaged` weights, and the hash of
    the list of those pictures, `negatives_sha256`. None for other runs."""
    initial_weights: str = ""
    """What was loaded before the first step, in words."""
    unknown_sha256: str = ""
    """With pictures of unknown plants: the hash of their list."""
    packed_from: str = ""
    """With packed data: hash of the manifest that it was made from."""

    @property
    def trained_with(self) -> str:
        """Hash of the manifest that the network was trained with, before packing; empty if unknown."""
        return self.packed_from or self.manifest_sha256

    @property
    def last_epoch(self) -> int:
        """Index of the last epoch whose pictures the network was trained on."""
        done = self.position["epoch"]
        return int(done if self.position["pictures"] else max(done - 1, 0))

    def trained_network(self) -> PlantNetwork:
        """The network that is exported, in evaluation mode."""
        network = PlantNetwork(self.architecture, len(self.output_keys))
        network.load_state_dict(self.eval_weights)
        return network.eval()

    @property
    def eval_weights(self) -> dict[str, Any]:
        """The weights that are validated and exported."""
        return self.ema or self.network


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint. If that fails, a previous file is unchanged."""
    with replaced(path) as stream:
        torch.save(msgspec.structs.asdict(checkpoint), stream)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint to the CPU. Code in it is never executed.

    Raises:
        CheckpointError: The file is missing, damaged, of another format, or not a checkpoint of this project.
    """
    content = load_tensors(path)
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise CheckpointError(
            "the file is not a checkpoint of this program", value=path, remedy="give last.pt or best.pt of a run"
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
    """Loads what `torch.save` wrote, without executing code, and verifies checksums, which torch does not.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    if not path.is_file():
        raise CheckpointError("no such checkpoint", value=path, remedy="correct the path")
    try:
        if zipfile.is_zipfile(path):  # torch's older format has no checksums
            with zipfile.ZipFile(path) as parts:
                wrong = parts.testzip()
            if wrong is not None:
                raise zipfile.BadZipFile(f"the checksum of {wrong} is wrong")
        with torch.serialization.safe_globals(_INERT):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # RuntimeError, UnpicklingError, EOFError, ...
        if other := re.search(r"GLOBAL (\S+)", str(error)):
            raise CheckpointError(
                f"{path} holds other things than tensors",
                value=other[1],
                remedy="save the weights alone: torch.save(network.state_dict(), FILE)",
            ) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise DamagedCheckpoint(
            f"the checkpoint {path} cannot be read", value=reason, remedy="use another one; it may be damaged"
        ) from error


class CheckpointFolder:
    """Writes `step-<number>.pt` and keeps the newest few; `last.pt` and `best.pt` are links to one file each."""

    def __init__(self, folder: Path, keep: int = KEPT, *, clean: bool = False) -> None:
        """`clean` removes what a killed process has partly written."""
        if clean:
            remove_leftovers(folder / "*.pt")
        self._folder = folder
        self._keep = keep

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return (self._folder / LAST).exists() or any(self._folder.glob(_STEPS))

    def newest(self) -> tuple[Path, Checkpoint, list[DamagedCheckpoint]]:
        """The newest readable checkpoint and its path, and the errors of newer ones that are damaged.

        Raises:
            CheckpointError: There is none, all are damaged, or the newest has another format.
        """
        seen: list[Path] = []
        damaged: list[DamagedCheckpoint] = []
        for path in [*self._newest_first(), self._folder / LAST]:
            if not path.is_file() or any(path.samefile(other) for other in seen):
                continue
            seen.append(path)
            try:
                return path, read_checkpoint(path), damaged
            except DamagedCheckpoint as error:
                damaged.append(error)
        if damaged:
            raise damaged[0]
        raise CheckpointError(
            "no such checkpoint: there is nothing to resume",
            value=self._folder / LAST,
            remedy="give the folder of a run with --run, or start one without --resume",
        )

    def save(self, checkpoint: Checkpoint, step: int, *, best: bool = False) -> None:
        """Writes a checkpoint, then removes the oldest ones."""
        path = self._folder / f"step-{step:09}.pt"
        write_checkpoint(path, checkpoint)
        for name in (LAST, BEST) if best else (LAST,):
            _link(path, self._folder / name)
        for old in self._newest_first()[self._keep :]:
            old.unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes all checkpoints."""
        for path in [*self._newest_first(), self._folder / LAST, self._folder / BEST]:
            path.unlink(missing_ok=True)

    def _newest_first(self) -> list[Path]:
        return sorted(self._folder.glob(_STEPS), reverse=True)


def _link(path: Path, name: Path) -> None:
    """Hard-links a file to a second name, atomically; copies it if the file system has no hard links."""
    temporary = name.with_name(f".{name.name}.link.part")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        with path.open("rb") as source, replaced(name) as stream:
            shutil.copyfileobj(source, stream)
        return
    temporary.replace(name)
