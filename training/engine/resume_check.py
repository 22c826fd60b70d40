"""Whether a checkpoint is one of the run that is to go on from it."""

from models.errors import CheckpointError
from training.engine.checkpoint import Checkpoint
from training.recipe import KnobRole, Recipe, knobs_with, recipe_to_plain


def require_resumable(checkpoint: Checkpoint, recipe: Recipe, *, manifest_sha256: str, num_ranks: int) -> None:
    """Refuses to go on from a checkpoint whose next step would not be the one that the run would have taken.

    Args:
        checkpoint: Where the run stood.
        recipe: What it is to go on with.
        manifest_sha256: Of the data it is to go on with.
        num_ranks: How many train together now.

    Raises:
        CheckpointError: Other data, another network, another order of pictures, or batches that are cut otherwise.
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
            remedy="resume with the recipe that the run began with",
        )
    _require_same_order(checkpoint, recipe)
    _require_same_batches(checkpoint, recipe, num_ranks)


def _require_same_batches(checkpoint: Checkpoint, recipe: Recipe, num_ranks: int) -> None:
    global_batch, schedule = checkpoint.global_batch, recipe.schedule
    effective = global_batch * checkpoint.recipe["schedule"]["accumulate"]
    if checkpoint.position["pictures"] == 0 and schedule.batch_size * num_ranks * schedule.accumulate == effective:
        return  # between epochs, as when a larger picture size no longer fits: a step sees as many pictures as before
    if global_batch != schedule.batch_size * num_ranks:
        fitting = f"--batch-size {global_batch // num_ranks}" if global_batch % num_ranks == 0 else "as many ranks"
        raise CheckpointError(
            "the run was begun with another batch_size over all ranks, which decides what each of its steps sees",
            value=f"{schedule.batch_size} on each of {num_ranks} ranks",
            limit=f"{global_batch} together",
            remedy=f"resume with {fitting}, or start a new run with --weights and another --run",
        )
    if schedule.accumulate != checkpoint.recipe["schedule"]["accumulate"]:
        raise _begun_otherwise("accumulate", schedule.accumulate, checkpoint.recipe["schedule"]["accumulate"])


def _require_same_order(checkpoint: Checkpoint, recipe: Recipe) -> None:
    now, then = recipe_to_plain(recipe), checkpoint.recipe
    for section, knob in knobs_with(KnobRole.FIXED_AT_RESUME):
        if now[section][knob] != then[section][knob]:
            raise _begun_otherwise(knob, now[section][knob], then[section][knob])


def _begun_otherwise(knob: str, now: object, then: object) -> CheckpointError:
    return CheckpointError(
        f"the run was begun with another {knob}, which decides what each of its steps sees",
        value=now,
        limit=str(then),
        remedy="resume with that, or start a new run with --weights and another --run",
    )
