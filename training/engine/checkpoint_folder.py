"""The checkpoints of a run: the newest few and the best one."""

import os
import shutil
from pathlib import Path

from models.errors import CheckpointError
from training.atomic_file import remove_leftovers, replaced
from training.engine.checkpoint import BEST, LAST, Checkpoint, DamagedCheckpoint, read_checkpoint, write_checkpoint

_STEPS = "step-*.pt"


class CheckpointFolder:
    """Writes `step-<number>.pt` and keeps the newest few; `last.pt` and `best.pt` are links to one file each.

    Args:
        folder: The run's folder.
        keep: How many of the newest to keep.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return (self._folder / LAST).exists() or any(self._folder.glob(_STEPS))

    def newest(self) -> tuple[Path, Checkpoint, list[DamagedCheckpoint]]:
        """The newest readable checkpoint and its path, and the errors of newer ones that are damaged.

        Raises:
            CheckpointError: There is none, all are damaged, or the newest has another format.
        """
        damaged: list[DamagedCheckpoint] = []
        for path in self._candidates():
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

    def clear_leftovers(self) -> None:
        """Removes partly written checkpoints of a killed process."""
        remove_leftovers(self._folder / "*.pt")

    def _candidates(self) -> list[Path]:
        """The numbered checkpoints from the newest on, then `last.pt`; a file with two names appears once."""
        found: list[Path] = []
        for path in [*self._newest_first(), self._folder / LAST]:
            if path.is_file() and not any(path.samefile(other) for other in found):
                found.append(path)
        return found

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
