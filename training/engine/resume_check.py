"""Checks that a run can continue from a checkpoint."""

from models.errors import CheckpointError
from training.engine.checkpoint import Checkpoint
from training.network_input import input_spec, stored_input_spec
from training.recipe import KnobRole, Recipe, check_stored_recipe, knobs_with, recipe_to_plain


def require_resumable(
    checkpoint: Checkpoint, recipe: Recipe, *, manifest_sha256: str, num_ranks: int, negatives_sha256: str = ""
) -> None:
    """Raises unless the next step would train on the same pictures as in an uninterrupted run.

    Args:
        checkpoint: The checkpoint to continue from.
        recipe: The recipe of the resumed run.
        manifest_sha256: Hash of the resumed run's data.
        num_ranks: Number of ranks of the resumed run.
        negatives_sha256: Hash of its list of pictures without plants; empty if it has none.

    Raises:
        CheckpointError: The data, the network, the order of pictures or the batches differ.
    """
    if checkpoint.manifest_sha256 != manifest_sha256:
        raise CheckpointError(
            "the checkpoint was trained on other data",
            value=f"manifest {manifest_sha256[:12]}",
            limit=f"manifest {checkpoint.manifest_sha256[:12]}",
            remedy="restore that data, or start a new run with --weights and another --run",
        )
    if checkpoint.architecture != recipe.network.architecture:
        raise CheckpointError(
            "the checkpoint holds another network",
            value=checkpoint.architecture,
            limit=recipe.network.architecture,
            remedy="resume with the recipe that the run was started with",
        )
    _require_same_negatives(checkpoint, negatives_sha256)
    _require_same_order(checkpoint, recipe)
    _require_same_batches(checkpoint, recipe, num_ranks)


def require_whole_batches(pictures: int, global_batch: int) -> None:
    """Raises if the position of a checkpoint is inside a batch, since it was made with another batch size.

    Args:
        pictures: Pictures of the epoch that the checkpoint was trained on.
        global_batch: Pictures of a batch of the resumed run, on all ranks together.

    Raises:
        CheckpointError: A step would see only a part of its pictures.
    """
    if pictures % global_batch:
        raise CheckpointError(
            "the checkpoint's position is inside a batch",
            value=f"{pictures} pictures into the epoch",
            limit=f"a multiple of {global_batch}",
            remedy="resume with the batch size and the number of ranks that it was trained with",
        )


def _require_same_batches(checkpoint: Checkpoint, recipe: Recipe, num_ranks: int) -> None:
    global_batch, schedule = checkpoint.global_batch, recipe.schedule
    effective = global_batch * checkpoint.recipe["schedule"]["accumulate"]
    if schedule.batch_size * num_ranks * schedule.accumulate == effective:
        return  # a step keeps its pictures, so the batch size may change, as the advice for too little memory says
    if global_batch != schedule.batch_size * num_ranks:
        same_batch = f"--batch-size {global_batch // num_ranks}" if global_batch % num_ranks == 0 else "as many ranks"
        raise CheckpointError(
            "the run was started with another batch_size over all ranks, so its steps would see other pictures",
            value=f"{schedule.batch_size} on each of {num_ranks} ranks",
            limit=f"{global_batch} in total",
            remedy=f"resume with {same_batch}, or start a new run with --weights and another --run",
        )
    if schedule.accumulate != checkpoint.recipe["schedule"]["accumulate"]:
        raise _changed_setting("accumulate", schedule.accumulate, checkpoint.recipe["schedule"]["accumulate"])


def _require_same_negatives(checkpoint: Checkpoint, negatives_sha256: str) -> None:
    then = checkpoint.plant_output["negatives_sha256"] if checkpoint.plant_output is not None else ""
    if then != negatives_sha256:
        raise CheckpointError(
            "the run was started with other pictures without plants (--negatives)",
            value=f"list {negatives_sha256[:12]}" if negatives_sha256 else "none",
            limit=f"list {then[:12]}" if then else "none",
            remedy="resume with the same folders, or start a new run with --weights and another --run",
        )


def _require_same_order(checkpoint: Checkpoint, recipe: Recipe) -> None:
    then = recipe_to_plain(check_stored_recipe(checkpoint.recipe, origin="checkpoint"))
    now = recipe_to_plain(recipe)
    input_then, input_now = stored_input_spec(checkpoint.recipe, origin="checkpoint"), input_spec(recipe)
    for name in ("mean", "std"):
        if getattr(input_now, name) != getattr(input_then, name):
            raise _changed_setting(name, getattr(input_now, name), getattr(input_then, name))
    for section, knob in knobs_with(KnobRole.FIXED_AT_RESUME):
        if now[section][knob] != then[section][knob]:
            raise _changed_setting(knob, now[section][knob], then[section][knob])


def _changed_setting(knob: str, now: object, then: object) -> CheckpointError:
    return CheckpointError(
        f"the run was started with another {knob}, so its steps would see other pictures",
        value=now,
        limit=str(then),
        remedy="resume with that value, or start a new run with --weights and another --run",
    )
