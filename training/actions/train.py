"""Trains, resumes, tunes, or draws a batch."""

import os
import traceback
from contextlib import closing
from difflib import get_close_matches
from pathlib import Path

import msgspec
import timm
import torch

from models.errors import DataError, RecipeError
from models.network import PlantNetwork
from training.bundling.commands import without_folders
from training.commands.train import Train
from training.dataset.manifest import Manifest
from training.engine.checkpoint import BEST, LAST, CheckpointFolder
from training.engine.device import choose_device, keep_freed_memory
from training.engine.distributed import Ranks, exit_now, has_joined, join, launch_id, leave, lost_ranks, restart_count
from training.engine.loop import Trainer
from training.engine.stop_signal import EXIT_REQUEUE, Stopped
from training.engine.weights import load_weights
from training.herbarium.training_data import ensure_training_data
from training.insight.tuning.proposal import tune
from training.loading.augment import seeded
from training.loading.show_batch import show_batch
from training.monitor.log import LOG_FILE, read_log
from training.monitor.memory import OutOfMemory, is_out_of_memory
from training.network_input import with_fitting_sizes, with_network_input
from training.program import run_program
from training.recipe import Recipe, recipe_to_plain

RECIPE_COPY = "recipe.json"


def run(command: Train) -> None:
    """Trains as a program of its own, whose errors become one line; a rank that failed does not wait for the others."""
    try:
        run_program(lambda: _run(command))
    except SystemExit as ended:
        if ended.code not in (None, 0, EXIT_REQUEUE):
            exit_now(int(ended.code))
        raise
    except Exception:
        if not has_joined():
            raise
        traceback.print_exc()
        exit_now(1)


def _run(command: Train) -> None:
    if command.recipe.hardware.device == "cpu" or not torch.cuda.is_available():
        keep_freed_memory()  # here and not in `train`, which other programs call in their own process
    train(command)


def train(command: Train) -> None:
    """Trains, resumes, tunes, or draws a batch; under torchrun, as one of several ranks.

    Raises:
        BotanifyError: A problem that the user can fix; nothing was overwritten.
        Stopped: The process received SIGTERM or Ctrl-C, and a checkpoint was written.
    """
    device = choose_device(command.recipe.hardware, int(os.environ.get("LOCAL_RANK", "0")))
    try:
        _train_on(command, device, join(device.type))
    except Stopped:  # raised on every rank
        leave()
        raise
    except RuntimeError as error:
        if is_out_of_memory(error):
            reason = str(error).partition("\n")[0]
            smaller = "use a smaller --batch-size, or --serve-px if it was in a validation"
            raise OutOfMemory(f"memory ran out outside of a step ({reason}); {smaller}.") from error
        if (lost := lost_ranks(error)) is not None:
            raise lost from error
        raise
    leave()


def _train_on(command: Train, device: torch.device, ranks: Ranks) -> None:
    _require_architecture(command.recipe.network.architecture)
    recipe, note = with_fitting_sizes(with_network_input(command.recipe))
    if note and ranks.is_main:
        print(note)
    with ranks.main_first():  # it writes the drawn pictures and the manifest that the other ranks read
        ensure_training_data(recipe.data, recipe.run.seed)
        manifest = Manifest(recipe.data.data, recipe.data.shards)
    _require_outputs(manifest, recipe)
    if command.show_batch is not None:
        show_batch(manifest, recipe, command.show_batch)
        print(f"Written: {command.show_batch}")
        return
    if command.tune:
        tune(recipe, manifest, device, ranks)
        return
    _train(msgspec.structs.replace(command, recipe=recipe), manifest, device, ranks)


def _require_outputs(manifest: Manifest, recipe: Recipe) -> None:
    expected, found = recipe.data.expect_outputs, len(manifest.taxonomy.outputs)
    if expected and expected != found:
        raise DataError(
            "the number of outputs of the data is not the one that the recipe expects",
            value=found,
            limit=str(expected),
            remedy="prepare the data that the recipe is for, or pass --expect-outputs 0",
        )


def _require_architecture(name: str) -> None:
    known = [*timm.list_models(), *timm.list_pretrained()]  # the latter with the tags of published weights
    if name not in known:
        close = get_close_matches(name, known, n=1) or ["efficientnet_b4"]
        raise RecipeError(
            "no such architecture", value=name, limit="the name of a timm model", remedy=f"try {close[0]}"
        )


def _train(command: Train, manifest: Manifest, device: torch.device, ranks: Ranks) -> None:
    recipe = command.recipe
    resumes = ranks.broadcast(ranks.is_main and _resumes(command))
    network, loaded = _seeded_network(recipe, manifest), ""  # a resumed run loads its weights from the checkpoint
    if not resumes:
        loaded = load_weights(network, recipe.network.weights, manifest.taxonomy.output_keys)
        if ranks.is_main:
            print(loaded)
    with closing(Trainer(recipe, manifest, network, device, ranks)) as trainer:
        if resumes:
            trainer.resume()
        else:
            trainer.checkpoints.clear()
            weights = recipe.network.weights
            trainer.checkpoints.initial_weights = loaded.replace(weights, without_folders(weights))
        if ranks.is_main:
            plain = msgspec.json.encode(recipe_to_plain(recipe))
            (recipe.run.run / RECIPE_COPY).write_bytes(msgspec.json.format(plain))
        position = trainer.run(command.max_steps, command.max_seconds)
    if ranks.is_main:
        found, name = "nothing was validated", LAST
        if position.best >= 0:
            found, name = f"best validation top-1 {position.best:.1%}", BEST
        print(
            f"{position.epoch} of {recipe.schedule.epochs} epochs, {position.step} steps; {found}. "
            f"Next: python training/evaluate.py --checkpoint {recipe.run.run / name} --data {recipe.data.data}"
        )


def _resumes(command: Train) -> bool:
    """Whether the run continues from a checkpoint.

    Raises:
        RecipeError: The folder holds a run, and no flag says whether to continue or overwrite it.
    """
    run = command.recipe.run
    has_checkpoint = CheckpointFolder(run.run, run.keep).has_checkpoint
    if command.resume:
        return True
    if command.auto_resume or (restart_count() > 0 and _started_by_this_launch(run.run)):
        return has_checkpoint
    if has_checkpoint and not command.restart:
        raise RecipeError(
            "the folder already holds a run",
            value=run.run / LAST,
            remedy="pass --resume to continue it, --restart to start over, or --run for another folder",
        )
    return False


def _started_by_this_launch(run: Path) -> bool:
    """Whether this torchrun started the run in the folder, before it restarted its ranks."""
    if not (run / LOG_FILE).exists():
        return False
    starts = [event for event in read_log(run) if event["event"] == "start"]
    return bool(starts) and starts[-1].get("launch") == launch_id()


def _seeded_network(recipe: Recipe, manifest: Manifest) -> PlantNetwork:
    """The network with random weights from the recipe's seed, the same on every rank."""
    with seeded(recipe.run.seed):
        return PlantNetwork(
            recipe.network.architecture,
            len(manifest.taxonomy.outputs),
            dropout=recipe.network.dropout,
            drop_path=recipe.network.drop_path,
        )
