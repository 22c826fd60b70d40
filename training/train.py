"""Program: trains a network by a recipe.

python training/train.py RECIPE [--flags]     RECIPE is a TOML file, or the name of one in training/recipes
"""

import os
import sys
import traceback
from contextlib import closing
from difflib import get_close_matches
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages
from training.program import INSTALL, run_program

explain_missing_packages(INSTALL)

import msgspec
import timm
import torch
import tyro

from models.errors import DataError, RecipeError
from models.network import PlantNetwork
from training.bundling.commands import without_folders
from training.dataset.manifest import Manifest
from training.engine.checkpoint import LAST
from training.engine.checkpoint_folder import CheckpointFolder
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
from training.picture_sizes import sizes_by_flags
from training.recipe import Recipe, check_recipe, read_recipe, recipe_to_plain

RECIPE_COPY = "recipe.json"


class Train(msgspec.Struct, frozen=True, kw_only=True):
    """Trains a network by a recipe. Each setting of the recipe is a flag, too."""

    recipe_file: tyro.conf.Positional[Path]
    """A TOML file, or the name of one in training/recipes."""
    recipe: Recipe
    resume: bool = False
    """Continue from the last checkpoint in the run's folder."""
    auto_resume: bool = False
    """Continue if there is a checkpoint, otherwise start; for schedulers, which start the same command again."""
    restart: bool = False
    """Start over in a folder that holds a run, and overwrite that run."""
    max_steps: int | None = None
    """Stop after this many optimizer steps, with a checkpoint."""
    max_seconds: float | None = None
    """Stop when the run has trained for this many seconds, with a validation and a checkpoint."""
    show_batch: Path | None = None
    """Draw one augmented batch with its labels to this PNG file, and stop."""
    tune: bool = False
    """Measure batch sizes, memory layout, precision and compilation on this machine, propose flags, and stop."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    try:
        run_program(lambda: _run(parse(sys.argv[1:])))
    except SystemExit as ended:
        if ended.code not in (None, 0, EXIT_REQUEUE):
            exit_now(int(ended.code))
        raise
    except Exception:
        if not has_joined():
            raise
        traceback.print_exc()
        exit_now(1)


def parse(arguments: list[str]) -> Train:
    """Reads the recipe, which comes first, and applies the flags to it.

    Raises:
        RecipeError: The recipe or a flag is wrong.
    """
    named = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if named is None and not {"-h", "--help"} & set(arguments):
        raise RecipeError("no recipe is given", remedy="give one first, as in: train.py b4_5337 --data DATA")
    path = Path(named or "b4_5337")
    command = tyro.cli(
        Train,
        description=__doc__,
        args=arguments,
        default=Train(recipe_file=path, recipe=read_recipe(path)),
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if command.max_steps is not None and command.max_steps < 1:
        raise RecipeError("too few steps", value=f"--max-steps {command.max_steps}", limit="at least 1")
    if command.max_seconds is not None and not command.max_seconds > 0:
        raise RecipeError("too little time", value=f"--max-seconds {command.max_seconds}", limit="more than 0")
    return msgspec.structs.replace(command, recipe=_resolved(command.recipe, read_recipe(path), arguments))


def _resolved(recipe: Recipe, of_file: Recipe, arguments: list[str]) -> Recipe:
    """Checks a recipe with its flags, and gives it one size of the training pictures."""
    given = [word.partition("=")[0].lstrip("-").replace("-", "_") for word in arguments if word.startswith("--")]
    pictures = sizes_by_flags(recipe.pictures, of_file.pictures.picture_px, given)
    return check_recipe(recipe_to_plain(msgspec.structs.replace(recipe, pictures=pictures)), origin="with these flags")


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
            raise OutOfMemory(f"memory ran out outside of a step ({reason}); use a smaller --batch-size.") from error
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
    if not timm.is_model(name):
        close = get_close_matches(name, timm.list_models(), n=1) or ["efficientnet_b4"]
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
        found = f"best validation top-1 {position.best:.1%}" if position.best >= 0 else "nothing was validated"
        print(
            f"{position.epoch} of {recipe.schedule.epochs} epochs, {position.step} steps; {found}. "
            f"Next: python training/evaluate.py --checkpoint {recipe.run.run / LAST} --data {recipe.data.data}"
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


if __name__ == "__main__":
    main()
