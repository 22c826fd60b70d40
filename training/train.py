"""Program: trains a network by a recipe.

python training/train.py RECIPE [--flags]     RECIPE is a TOML file, or the name of one in training/recipes
"""

import math
import os
import sys
import traceback
from contextlib import ExitStack, closing
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import clear_errors, explain_missing_packages, read_flags, tell_next

explain_missing_packages("make train-env")

import msgspec
import tyro
from msgspec.structs import replace

from models.atomic_file import locked, write_json
from models.errors import RecipeError
from training.recipe import (
    Count,
    Positive,
    Recipe,
    WholeNumber,
    check_recipe,
    read_recipe,
    recipe_to_store,
    sizes_by_flags,
)
from training.toml_file import section_to_plain, without_folders

# PyTorch takes seconds to load. The functions that need it import it, so that --help and a wrong flag answer at once.
if TYPE_CHECKING:
    import torch

    from training.dataset.manifest import Manifest
    from training.engine.device import Ranks
    from training.loading.negatives import RunInput

RECIPE_COPY: Final = "recipe.json"


class Train(msgspec.Struct, frozen=True, kw_only=True):
    """Trains a network by a recipe. Each setting of the recipe is a flag, too."""

    recipe_file: tyro.conf.Positional[Path]
    """A TOML file, the name of one in training/recipes, or a bundle, for the recipe that it was trained by."""
    recipe: Recipe
    resume: bool = False
    """Continue from the last checkpoint in the run's folder."""
    auto_resume: bool = False
    """Continue if there is a checkpoint, otherwise start; for schedulers, which start the same command again."""
    restart: bool = False
    """Start over in a folder that holds a run, and overwrite that run."""
    max_steps: Count | None = None
    """Stop after this many optimizer steps, with a checkpoint."""
    max_seconds: Positive | None = None
    """Stop when the run has trained for this many seconds, with a validation and a checkpoint."""
    forecast: WholeNumber = 0
    """Load the initial weights, convert the network to ONNX, take some steps on random pictures, tell how long a
    training with so many pictures takes on this machine, and stop; needs no data."""
    deterministic: bool = False
    """Take the kernels that repeat a run exactly, as far as PyTorch has them, although they are slower; on the same
    GPUs, with the same versions."""


def main() -> None:
    """Trains with the arguments of the command line; a rank that failed does not wait for the others."""
    with clear_errors():
        command = parse(sys.argv[1:])
    # Threads that wait for each other shall sleep: on a busy machine those that spin take the cores from the others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    import torch.distributed as dist

    from training.engine.device import exit_now, keep_freed_memory
    from training.engine.stop_signal import EXIT_REQUEUE

    keep_freed_memory(command.recipe.hardware)  # here and not in `train`, which other programs call in their process
    try:
        with clear_errors():
            train(command)
    except SystemExit as ended:
        if ended.code not in (None, 0, EXIT_REQUEUE):
            exit_now(int(ended.code))
        raise
    except Exception:
        if not dist.is_initialized():
            raise
        traceback.print_exc()
        exit_now(1)


def parse(arguments: list[str]) -> Train:
    """Reads the recipe, which comes first, and applies the flags to it.

    Raises:
        InputError: The recipe or a flag is wrong.
    """
    named = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    if not named and not {"-h", "--help"} & set(arguments):
        raise RecipeError("no recipe is given", remedy="give one first, as in: train.py b4_5337 --data DATA")
    given = [word.partition("=")[0].lstrip("-").replace("-", "_") for word in arguments if word.startswith("--")]
    path = Path(named or "b4_5337")
    of_file = read_recipe(path)
    command: Train = read_flags(
        Train,
        arguments,
        description=__doc__,
        default=Train(recipe_file=path, recipe=of_file),
        config=(tyro.conf.OmitArgPrefixes,),
    )
    pictures = sizes_by_flags(command.recipe.pictures, of_file.pictures.picture_px, given)
    recipe = section_to_plain(replace(command.recipe, pictures=pictures))
    return replace(command, recipe=check_recipe(recipe, origin="with these flags"))


def train(command: Train) -> None:
    """Trains or resumes; under torchrun, as one of several ranks.

    Raises:
        BotanifyError: A problem that the user can fix; nothing was overwritten.
        Stopped: The process received SIGTERM or Ctrl-C, and a checkpoint was written.
    """
    from training.engine.device import (
        avoid_fragments,
        choose_deterministic_kernels,
        choose_device,
        join,
        leave,
        lost_ranks,
        require_compiler,
    )
    from training.engine.stop_signal import Stopped
    from training.monitor.memory import OutOfMemory, is_out_of_memory

    device = choose_device(command.recipe.hardware, int(os.environ.get("LOCAL_RANK", "0")))
    avoid_fragments(device)
    require_compiler(command.recipe.hardware, device)
    if command.deterministic:
        choose_deterministic_kernels()
        hardware = replace(command.recipe.hardware, cudnn_benchmark=False)
        command = replace(command, recipe=replace(command.recipe, hardware=hardware))
    try:
        _train_on(command, device, join(device.type))
    except Stopped:  # raised on every rank
        leave()
        raise
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            reason = str(error).partition("\n")[0]
            smaller = "use a smaller --batch-size, or --serve-px if it was in a validation"
            raise OutOfMemory(f"memory ran out outside of a step ({reason}); {smaller}.") from error
        if (lost := lost_ranks(error)) is not None:
            raise lost from error
        raise
    leave()


def _train_on(command: Train, device: "torch.device", ranks: "Ranks") -> None:
    """Prepares recipe and data, then trains."""
    import timm

    from training import forecast
    from training.dataset.manifest import Manifest
    from training.drawn import ensure_training_data
    from training.engine.weights import load_weights, new_network
    from training.fit.onnx_file import convert
    from training.loading.negatives import RunInput
    from training.network_input import with_fitting_sizes

    name = command.recipe.network.architecture
    known = [*timm.list_models(), *timm.list_pretrained()]  # the latter with the tags of published weights
    if name not in known:
        close = get_close_matches(name, known, n=1) or ["efficientnet_b4"]
        raise RecipeError(
            "no such architecture", value=name, limit="the name of a timm model", remedy=f"try {close[0]}"
        )
    recipe, note = with_fitting_sizes(command.recipe)
    if note and ranks.is_main:
        print(note)
    if recipe.network.frozen_stages:  # it sees each picture once, as in the service
        pictures = replace(recipe.pictures, picture_px=recipe.pictures.serve_px, progressive=())
        recipe = replace(recipe, pictures=pictures)
    if command.forecast:
        network = new_network(recipe, 1)
        side_px = recipe.pictures.serve_px
        load_weights(network, recipe.network.weights)  # an error says how to get them
        network.fix_size(side_px, side_px)
        convert(network, side_px, side_px)  # here and not after the hours
        print("timing some steps; on a CPU one may take minutes", flush=True)
        print(forecast.on_this_machine(recipe, command.forecast, device))
        return
    with ranks.main_first():  # it writes the drawn pictures and the manifest that the other ranks read
        ensure_training_data(recipe.data)
        manifest = Manifest(recipe.data.data, recipe.data.shards)
    inputs = RunInput.of(recipe)
    _run(command, inputs, manifest, device, ranks)


def _run(command: Train, inputs: "RunInput", manifest: "Manifest", device: "torch.device", ranks: "Ranks") -> None:
    """Starts or resumes the run, trains, and says what comes next."""
    from training.engine.checkpoint import BEST, LAST, CheckpointFolder
    from training.engine.features import stored_features
    from training.engine.loop import Trainer
    from training.engine.weights import load_weights, new_network
    from training.loading.augment import seeded

    recipe = inputs.recipe
    folder = recipe.run.run
    weights = recipe.network.weights
    resumes = ranks.broadcast(ranks.is_main and _resumes(command))
    with seeded(recipe.run.seed):  # the same random weights on every rank
        network = new_network(recipe, len(manifest.taxonomy.outputs))
    loaded = ""  # a resumed run loads its weights from the checkpoint
    is_frozen = recipe.network.frozen_stages
    if not resumes or is_frozen:  # a resumed run has features of its own weights, whatever became of the file
        start = CheckpointFolder(folder).newest()[0] if resumes else weights
        loaded = load_weights(network, str(start), manifest.taxonomy.output_keys)
        if ranks.is_main:
            print(loaded)
    with ExitStack() as stack:
        if ranks.is_main:
            busy = "another process trains in this folder"
            stack.enter_context(locked(folder, busy, remedy="wait for it to end, or take another folder with --run"))
        if is_frozen:
            inputs = replace(inputs, features=stored_features(inputs, manifest, network, device, ranks))
        trainer = stack.enter_context(closing(Trainer(inputs, manifest, network, device, ranks)))
        if resumes:
            trainer.resume()
        else:
            if ranks.is_main:
                trainer.checkpoints.folder.clear()
            trainer.checkpoints.initial_weights = loaded.replace(weights, without_folders(weights))
        if ranks.is_main:
            write_json(folder / RECIPE_COPY, recipe_to_store(recipe))
        position = trainer.run(command.max_steps or math.inf, command.max_seconds or math.inf)
    if ranks.is_main:
        found = f"best validation top-1 {position.best:.1%}" if position.best >= 0 else "nothing was validated"
        name = BEST if position.best >= 0 else LAST
        print(f"{position.epoch} of {recipe.schedule.epochs} epochs, {position.step} steps; {found}")
        tell_next(f"python training/evaluate.py --checkpoint {folder / name} --data {recipe.data.data}")


def _resumes(command: Train) -> bool:
    """Whether the run continues from a checkpoint.

    Raises:
        RecipeError: The folder holds a run, and no flag says whether to continue or overwrite it.
    """
    from training.engine.checkpoint import LAST, CheckpointFolder
    from training.engine.device import launch_id
    from training.monitor.log import LOG_FILE, read_log

    folder = command.recipe.run.run
    if command.resume:
        return True
    restarted = False  # whether this torchrun started the run, and has restarted its ranks, as after one of them died
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" and (folder / LOG_FILE).exists():
        starts = [event for event in read_log(folder) if event["event"] == "start"]
        restarted = bool(starts) and starts[-1].get("launch") == launch_id()
    has_checkpoint = CheckpointFolder(folder).has_checkpoint
    if has_checkpoint and not (command.auto_resume or restarted or command.restart):
        raise RecipeError(
            "the folder already holds a run",
            value=folder / LAST,
            remedy="pass --resume to continue it, --restart to start over, or --run for another folder",
        )
    return has_checkpoint and (command.auto_resume or restarted)


if __name__ == "__main__":
    main()
