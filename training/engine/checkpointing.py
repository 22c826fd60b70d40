"""Decides when a run saves, makes its checkpoints, and restores a run from one."""

import time
from pathlib import Path
from typing import Any, Final

import msgspec

from training.dataset.manifest import Manifest
from training.engine.checkpoint import Checkpoint, CheckpointFolder, DamagedCheckpoint, Position, read_checkpoint
from training.engine.device import describe_device
from training.engine.optim import fast_forward, load_moments, match_memory_format
from training.engine.plant_output import load_plant_output, plant_output_state
from training.engine.resume_check import require_resumable, require_whole_batches
from training.engine.step import Engine
from training.loading.negatives import Negatives
from training.machine import current_commit
from training.network_input import with_input
from training.recipe import check_stored_recipe, recipe_to_plain

EVERY_S: Final = 600.0
"""Seconds between two checkpoints within an epoch."""


class Restored(msgspec.Struct, frozen=True):
    """The checkpoint from which a run continues."""

    path: Path
    position: Position
    damaged: list[DamagedCheckpoint]
    """Newer checkpoints that could not be read."""


class Checkpointer:
    """Saves and restores a run. Only the main rank writes; every rank must call `save` and `restore`.

    Args:
        engine: Holds the recipe, the weights and the optimizer.
        manifest: The data.
        global_batch: Pictures of a batch on all ranks together.
        negatives: The pictures that show no plant.
    """

    initial_weights: str = ""
    """What was loaded into a new run, in words; a resumed run takes it from its checkpoint."""

    def __init__(
        self, engine: Engine, manifest: Manifest, global_batch: int, negatives: Negatives | None = None
    ) -> None:
        self._engine, self._manifest, self._global_batch = engine, manifest, global_batch
        self._negatives_sha256 = negatives.sha256 if negatives is not None else ""
        self._recipe, self._ranks = engine.recipe, engine.ranks
        self._folder = CheckpointFolder(self._recipe.run.run)
        self._saved_at = time.monotonic()
        if self._ranks.is_main:
            self._folder.clear_leftovers()

    @property
    def exist(self) -> bool:
        """Whether the run has a checkpoint to resume from."""
        return self._folder.has_checkpoint

    def clear(self) -> None:
        """Removes the checkpoints of a run that starts over."""
        if self._ranks.is_main:
            self._folder.clear()

    def is_due(self, step: int) -> bool:
        """Whether the run saves after this optimizer step inside an epoch; only the main rank's clock counts."""
        every = self._recipe.run.checkpoint_every_steps
        if every > 0 and step % every == 0:
            return True
        return self._ranks.is_main and time.monotonic() - self._saved_at >= EVERY_S

    def save(self, position: Position, *, is_best: bool = False) -> bool:
        """Writes a checkpoint and returns True; returns False and writes nothing if a weight is not finite."""
        network, eval_model = self._engine.network, self._engine.eval_model
        for module in [network] if eval_model is network else [network, eval_model]:
            self._ranks.mean_statistics(module)
        if not all(bool(value.isfinite().all()) for value in network.state_dict().values()):
            return False
        if self._ranks.is_main:
            with self._engine.clock.stage("save"):
                self._folder.save(self.checkpoint(position), position.step, best=is_best)
        self._saved_at = time.monotonic()
        return True

    def checkpoint(self, position: Position) -> Checkpoint:
        """The run as it is now."""
        engine = self._engine
        return Checkpoint(
            architecture=engine.network.architecture,
            network=engine.network.state_dict(),
            ema=engine.eval_model.state_dict() if engine.ema is not None else None,
            optimizer=engine.optimizer.state_dict(),
            scheduler=engine.scheduler.state_dict(),
            scaler=engine.scaler_state(),
            position=msgspec.to_builtins(position),
            recipe=with_input(recipe_to_plain(self._recipe), self._recipe),
            output_keys=list(self._manifest.taxonomy.output_keys),
            manifest_sha256=self._manifest.sha256,
            packed_from=self._manifest.packed_from,
            global_batch=self._global_batch,
            git_commit=current_commit(),
            trained_on=describe_device(engine.device),
            initial_weights=self.initial_weights,
            plant_output=self._plant_output(),
        )

    def restore(self) -> Restored:
        """Loads the newest readable checkpoint into the engine. A schedule that was changed in the recipe takes effect.

        Raises:
            CheckpointError: There is no checkpoint, or the run cannot continue from it with this recipe and this data.
        """
        path, checkpoint, damaged = self._newest()
        require_resumable(
            checkpoint,
            self._recipe,
            manifest_sha256=self._manifest.sha256,
            negatives_sha256=self._negatives_sha256,
            num_ranks=self._ranks.num_ranks,
        )
        engine, position = self._engine, msgspec.convert(checkpoint.position, Position)
        require_whole_batches(position.pictures, self._global_batch)
        engine.load(checkpoint.network, checkpoint.eval_weights, checkpoint.scaler)
        if engine.with_plant_output is not None and checkpoint.plant_output is not None:
            load_plant_output(engine.with_plant_output, engine.scoring_model, checkpoint.plant_output)
        if self._recipe.schedule == check_stored_recipe(checkpoint.recipe, origin=str(path)).schedule:
            engine.optimizer.load_state_dict(checkpoint.optimizer)
            engine.scheduler.load_state_dict(checkpoint.scheduler)
        else:
            load_moments(engine.optimizer, checkpoint.optimizer)
            fast_forward(engine.scheduler, position.step)
        match_memory_format(engine.optimizer)
        self.initial_weights = checkpoint.initial_weights
        return Restored(path, position, damaged)

    def _plant_output(self) -> dict[str, Any] | None:
        trained = self._engine.with_plant_output
        if trained is None:
            return None
        state = plant_output_state(trained, self._engine.scoring_model)
        return state | {"negatives_sha256": self._negatives_sha256}

    def _newest(self) -> tuple[Path, Checkpoint, list[DamagedCheckpoint]]:
        """The main rank chooses the file, since a shared disk may not look the same to all ranks yet."""
        if self._ranks.is_main:
            newest = self._folder.newest()
            self._ranks.broadcast(newest[0])
            return newest
        path = self._ranks.broadcast(Path())
        return path, read_checkpoint(path), []
