"""Saves a run and continues it exactly: what goes into a checkpoint, and what must not differ at a resume."""

import time
from pathlib import Path
from typing import Final

import msgspec

from models.errors import CheckpointError
from models.preprocess import InputSpec
from training.dataset.manifest import Manifest
from training.engine.checkpoint import Checkpoint, CheckpointFolder, DamagedCheckpoint, Position, read_checkpoint
from training.engine.device import describe_device
from training.engine.step import Engine, fast_forward, load_optimizer
from training.machine import current_commit
from training.network_input import stored_input_spec, with_input
from training.recipe import Recipe, check_stored_recipe, keys_fixed_at_resume, recipe_to_store
from training.toml_file import section_to_plain

EVERY_S: Final = 600.0
"""Seconds between two checkpoints within an epoch."""
_ELSE_NEW_RUN: Final = "or start a new run with --weights and another --run"


class Checkpointer:
    """Saves and restores a run. Only the main rank writes; every rank must call `save` and `restore`."""

    initial_weights: str = ""
    """What was loaded into a new run, in words; a resumed run takes it from its checkpoint."""

    def __init__(self, engine: Engine, manifest: Manifest, global_batch: int) -> None:
        self._engine = engine
        self._manifest = manifest
        self._global_batch = global_batch
        self._git_commit = current_commit()  # of the code that runs; a checkout may change meanwhile
        self._recipe = engine.recipe
        self._ranks = engine.ranks
        self.folder = CheckpointFolder(self._recipe.run.run, clean=self._ranks.is_main)
        self._saved_at = time.monotonic()

    def is_due(self, step: int) -> bool:
        """Whether the run saves after this optimizer step inside an epoch; only the main rank's clock counts."""
        every = self._recipe.run.checkpoint_every_steps
        if every > 0 and step % every == 0:
            return True
        return self._ranks.is_main and time.monotonic() - self._saved_at >= EVERY_S

    def save(self, position: Position, *, is_best: bool = False) -> bool:
        """Writes a checkpoint and returns True; returns False and writes nothing if a weight is not finite."""
        network = self._engine.network
        for module in dict.fromkeys((network, self._engine.eval_model)):  # one or two
            self._ranks.mean_statistics(module)
        if not all(bool(value.isfinite().all()) for value in network.state_dict().values()):
            return False
        if self._ranks.is_main:
            with self._engine.clock.stage("save"):
                self.folder.save(self.checkpoint(position), position.step, best=is_best)
        self._saved_at = time.monotonic()
        return True

    def checkpoint(self, position: Position) -> Checkpoint:
        """The run as it is now."""
        engine = self._engine
        plant_output = None
        if engine.plant_output is not None:
            plant_output = {
                "weights": engine.plant_output.state_dict(),
                "averaged": engine.scoring_model.get_submodule("plant_output").state_dict(),
                "negatives_sha256": self._engine.inputs.negatives.sha256,
            }
        return Checkpoint(
            architecture=engine.network.architecture,
            network=engine.network.state_dict(),
            ema=engine.eval_model.state_dict() if engine.ema is not None else None,
            optimizer=engine.optimizer.state_dict(),
            scheduler=engine.scheduler.state_dict(),
            scaler=engine.scaler_state(),
            position=msgspec.to_builtins(position),
            recipe=with_input(recipe_to_store(self._recipe), engine.inputs.spec),
            output_keys=list(self._manifest.taxonomy.output_keys),
            manifest_sha256=self._manifest.sha256,
            packed_from=self._manifest.packed_from,
            global_batch=self._global_batch,
            git_commit=self._git_commit,
            trained_on=describe_device(engine.device),
            initial_weights=self.initial_weights,
            plant_output=plant_output,
            unknown_sha256=self._engine.inputs.unknown.sha256,
        )

    def restore(self) -> tuple[Path, Position, list[DamagedCheckpoint]]:
        """Loads the newest readable checkpoint into the engine. A schedule that was changed in the recipe takes effect.

        Returns its path, the position in it, and the errors of newer checkpoints that could not be read.

        Raises:
            CheckpointError: There is no checkpoint, or the run cannot continue from it with this recipe and this data.
        """
        damaged: list[DamagedCheckpoint] = []
        if self._ranks.is_main:  # it chooses the file, since a shared disk may not look the same to all ranks yet
            path, checkpoint, damaged = self.folder.newest()
            self._ranks.broadcast(path)
        else:
            path = self._ranks.broadcast(Path())
            checkpoint = read_checkpoint(path)
        position = msgspec.convert(checkpoint.position, Position)
        _require_same_data(checkpoint, self._recipe, self._manifest.sha256)
        then = (checkpoint.plant_output or {}).get("negatives_sha256", "")
        inputs = self._engine.inputs
        _require_same_list("without plants (--negatives)", inputs.negatives.sha256, then)
        _require_same_list("of unknown plants (--unknown)", inputs.unknown.sha256, checkpoint.unknown_sha256)
        _require_same_order(checkpoint, self._recipe, inputs.spec)
        _require_same_batches(checkpoint, self._recipe, self._ranks.num_ranks)
        if position.pictures % self._global_batch:
            raise CheckpointError(
                "the checkpoint's position is inside a batch",
                value=f"{position.pictures} pictures into the epoch",
                limit=f"a multiple of {self._global_batch}",
                remedy="resume with the batch size and the number of ranks that it was trained with",
            )
        engine = self._engine
        engine.load(checkpoint.network, checkpoint.eval_weights, checkpoint.scaler, checkpoint.plant_output)
        same_schedule = self._recipe.schedule == check_stored_recipe(checkpoint.recipe, origin=str(path)).schedule
        load_optimizer(engine.optimizer, checkpoint.optimizer, with_rates=same_schedule)
        if same_schedule:
            engine.scheduler.load_state_dict(checkpoint.scheduler)
        else:
            fast_forward(engine.scheduler, position.step)
        self.initial_weights = checkpoint.initial_weights
        return path, position, damaged


def _require_same_data(checkpoint: Checkpoint, recipe: Recipe, manifest_sha256: str) -> None:
    _require_same(
        "the checkpoint was trained on other data",
        f"manifest {manifest_sha256[:12]}",
        f"manifest {checkpoint.manifest_sha256[:12]}",
        f"restore that data, {_ELSE_NEW_RUN}",
    )
    _require_same(
        "the checkpoint holds another network",
        checkpoint.architecture,
        recipe.network.architecture,
        "resume with the recipe that the run was started with",
    )


def _require_same_list(what: str, now: str, then: str) -> None:
    """Compares hashes of lists of pictures; a run without them has the hash ""."""
    _require_same(
        f"the run was started with other pictures {what}",
        f"list {now[:12]}" if now else "none",
        f"list {then[:12]}" if then else "none",
        f"resume with the same folders, {_ELSE_NEW_RUN}",
    )


def _require_same_order(checkpoint: Checkpoint, recipe: Recipe, spec: InputSpec) -> None:
    """Raises unless the next step sees the pictures of an uninterrupted run."""
    then = section_to_plain(check_stored_recipe(checkpoint.recipe, origin="checkpoint"))
    then["network"]["frozen_stages"] = checkpoint.recipe.get("network", {}).get("frozen_stages", 0)
    now = section_to_plain(recipe)
    changes = [(key, now[part][key], then[part][key]) for part, key in keys_fixed_at_resume()]
    input_then = stored_input_spec(checkpoint.recipe, origin="checkpoint")
    decisive = ["mean", "std"]
    if recipe.network.frozen_stages:  # the features of training are those of the service
        decisive += ["height", "crop_fraction", "interpolation"]
    changes += [(name, getattr(spec, name), getattr(input_then, name)) for name in decisive]
    for key, new, old in changes:
        _require_same_setting(key, new, old)


def _require_same_batches(checkpoint: Checkpoint, recipe: Recipe, num_ranks: int) -> None:
    global_batch = checkpoint.global_batch
    schedule = recipe.schedule
    accumulate_then = checkpoint.recipe["schedule"]["accumulate"]
    if schedule.scale_lr:  # the rates follow from the number of ranks
        ranks_then = global_batch // checkpoint.recipe["schedule"]["batch_size"]
        _require_same_setting("number of ranks with scale_lr", num_ranks, ranks_then)
    if schedule.batch_size * num_ranks * schedule.accumulate == global_batch * accumulate_then:
        return  # a step keeps its pictures, so the batch size may change, as the advice for too little memory says
    if global_batch != schedule.batch_size * num_ranks:
        same_batch = f"--batch-size {global_batch // num_ranks}" if global_batch % num_ranks == 0 else "as many ranks"
        raise CheckpointError(
            "the run was started with another batch_size over all ranks, so its steps would see other pictures",
            value=f"{schedule.batch_size} on each of {num_ranks} ranks",
            limit=f"{global_batch} in total",
            remedy=f"resume with {same_batch}, {_ELSE_NEW_RUN}",
        )
    _require_same_setting("accumulate", schedule.accumulate, accumulate_then)


def _require_same_setting(key: str, now: object, then: object) -> None:
    problem = f"the run was started with another {key}, so its steps would differ"
    _require_same(problem, now, then, f"resume with that value, {_ELSE_NEW_RUN}")


def _require_same(problem: str, value: object, limit: object, remedy: str) -> None:
    if value != limit:
        raise CheckpointError(problem, value=value, limit=str(limit), remedy=remedy)
