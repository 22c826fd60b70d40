"""The checkpoints of a run: the newest few, the best, and which of them to go on from."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from models.errors import CheckpointError
from training.atomic_file import remove_leftovers, replaced
from training.engine.checkpoint import BEST, LAST, Checkpoint, DamagedCheckpoint, read_checkpoint, write_checkpoint

_STEPS = "step-*.pt"


class CheckpointFolder:
    """Writes `step-<number>.pt`, keeps the newest few, and lets `last.pt` and `best.pt` name one file each.

    Args:
        folder: The run's folder.
        keep: How many of the newest are kept.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    @property
    def holds_any(self) -> bool:
        """Whether there is something to go on from."""
        return (self._folder / LAST).exists() or any(self._folder.glob(_STEPS))

    def save(self, checkpoint: Checkpoint, step: int, *, best: bool = False) -> None:
        """Writes a checkpoint, and only then lets go of the oldest."""
        path = self._folder / f"step-{step:09}.pt"
        write_checkpoint(path, checkpoint)
        for name in (LAST, BEST) if best else (LAST,):
            _name_also(path, self._folder / name)
        for old in self._newest_first()[self._keep :]:
            old.unlink(missing_ok=True)

    def newest(self, warn: Callable[[str], None]) -> tuple[Path, Checkpoint]:
        """The newest checkpoint that is whole.

        Args:
            warn: Told about each that is damaged.

        Raises:
            CheckpointError: There is none, all are damaged, or the newest is of another program or version.
        """
        damage: CheckpointError | None = None
        for path in self._candidates():
            try:
                return path, read_checkpoint(path)
            except DamagedCheckpoint as error:
                warn(f"{error} The one before it is tried.")
                damage = damage or error
        if damage is not None:
            raise damage
        raise CheckpointError(
            "no such checkpoint: there is nothing to resume",
            value=self._folder / LAST,
            remedy="name the folder of a run with --run, or begin one without --resume",
        )

    def clear(self) -> None:
        """Removes all checkpoints of a run that shall start over."""
        for path in [*self._newest_first(), self._folder / LAST, self._folder / BEST]:
            path.unlink(missing_ok=True)

    def clear_leftovers(self) -> None:
        """Removes what a killed process left of checkpoints that it was writing."""
        remove_leftovers(self._folder / "*.pt")

    def _newest_first(self) -> list[Path]:
        return sorted(self._folder.glob(_STEPS), reverse=True)

    def _candidates(self) -> list[Path]:
        """The numbered ones from the newest on, then `last.pt`, each file once whatever its names."""
        found: list[Path] = []
        for path in [*self._newest_first(), self._folder / LAST]:
            if path.is_file() and not any(path.samefile(other) for other in found):
                found.append(path)
        return found


def _name_also(path: Path, name: Path) -> None:
    """Gives a file a second name in one move; where a disk knows no links, it gets a copy."""
    temporary = name.with_name(f".{name.name}.link.part")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        with path.open("rb") as source, replaced(name) as stream:
            shutil.copyfileobj(source, stream)
        return
    temporary.replace(name)
