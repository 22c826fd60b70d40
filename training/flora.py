"""Program: from nothing, or from a folder of your own, to a bundle that the service can serve.

Examples:
  python training/flora.py mini --root data/raw --out floras/mini   several thousand species from public data sets
  python training/flora.py my_plants --out floras/mine              a folder of class folders

It starts the programs that stand beside it, one after another: download, prepare, train, export, promote, evaluate. A
step reads what the step before has left in OUT. The same command continues a run that was interrupted; a step that is
done stays as it is, so other settings need another OUT. For several GPUs it starts torchrun. Like train.py it exits
with 75 after SIGTERM, so that a scheduler starts it again.

A message of a step may name a flag that this program does not have. A flag of train.py is a key of the recipe: give
--recipe a copy that sets it. For another step, run its printed command with the flag, and then this one again.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import STARTED_BY_FLORA, explain_missing_packages, run_program

explain_missing_packages("make train-env")

import tyro
from msgspec import Meta
from msgspec.structs import replace

from models.bundle import BUNDLE_FILE
from models.errors import DataError, RecipeError
from training.dataset.collection import CutShare, read_collection
from training.dataset.download import Download, download
from training.dataset.manifest import MANIFEST_FILE
from training.dataset.others import NEGATIVES_LIST, UNKNOWN_LISTS
from training.dataset.report.page import HTML_FILE
from training.engine.stop_signal import EXIT_INTERRUPTED, EXIT_REQUEUE
from training.machine import find_gpus
from training.recipe import read_recipe
from training.toml_file import RECIPES, Section, check_section, read_toml

_PROJECT: Final = Path(__file__).resolve().parents[1]
_TRAIN, _EXPORT, _TEST = UNKNOWN_LISTS
_PACKED: Final = 125e3  # bytes of a packed picture at most, as docs/flora.md says of those of mini


class Flora(Section, frozen=True, kw_only=True):
    """What `training/recipes/flora_NAME.toml` says."""

    name: str
    """Of the bundle."""
    description: str
    collection: str
    """A collection, as for `prepare.py sources`."""
    recipe: str
    """A recipe of train.py."""
    num_pictures: Annotated[int, Meta(ge=0)] = 0
    """That training will see, about; forecasts need it as long as there are no data."""

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= 100 or self.name[0] in ".-" or "/" in self.name:
            raise ValueError(
                f"the name {self.name[:100]!r} needs up to 100 characters without slash, dash or dot first"
            )
        if not (self.name + self.description).isprintable():
            raise ValueError("name and description are lines without control characters")


class Command(Section, frozen=True, kw_only=True):
    """Makes a bundle, from the download to the registry."""

    flora: tyro.conf.Positional[Path]
    """A TOML file, the name of one (training/recipes/flora_NAME.toml), or a folder of class folders."""
    out: Path
    """Folder for everything that the steps write."""
    root: Path = Path("data/raw")
    """Folder for the downloads."""
    recipe: str = ""
    """A recipe, as for train.py; default: the flora's, or for a folder `own_folder`, without a GPU `probe`."""
    weights: str = ""
    """Initial weights, as for train.py."""
    description: str = ""
    """What the bundle is about, for its page; default: that of the flora; for a folder, how many pictures it has."""
    calibration_share: CutShare = 0.0
    """For a folder, as for prepare.py: share of the pictures that calibrate the bundle; with 0 names are guesses."""
    without: tuple[str, ...] = ()
    """Data sets of the collection to leave out."""
    mirror: str = ""
    """Address of a copy of the downloads."""
    yes: bool = False
    """Agree to the download and its licenses, without being asked."""
    dry_run: bool = False
    """Print the commands, which steps are done, and the sizes of the downloads, of which only lists of files are
    fetched."""


class Step(NamedTuple):
    """A program and its flags."""

    name: str
    arguments: list[str]
    result: Path
    """A file that is written last, so that the step is done if it is there."""
    needs: Callable[[], Iterable[str]] = tuple
    """Returns sentences on what it takes, for a dry run."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Command, run, description=__doc__)


def run(command: Command) -> None:
    """Runs the steps that are not done.

    Raises:
        RecipeError: There is no such flora, it cannot be used, or torchrun started this program.
        SystemExit: A step failed; the exit code is that of its program.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        remedy = "start it once, without torchrun: it starts torchrun for the training"
        raise RecipeError("flora.py was started once for each GPU", remedy=remedy)
    if command.flora.is_dir() and not command.recipe:
        cards, _ = find_gpus()
        command = replace(command, recipe="own_folder" if cards else "probe")
        print(f"recipe: {command.recipe}, since this machine has {cards[0] if cards else 'no GPU'}; or give --recipe")
    stopped: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    try:
        _run_steps(command, stopped)
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"Look at: {command.out / 'data' / HTML_FILE}, and the mistakes in {command.out / 'report'}")
    print(f"Serve it: python -m serving --bundle {command.out / 'registry' / 'current'}")


def _run_steps(command: Command, stopped: list[int]) -> None:
    for step in steps(command):
        done = step.result.exists()
        told = f"done, {step.result} is there" if done else shlex.join(["python", *step.arguments])
        print(f"{step.name}: {told}", flush=True)
        if done:
            continue
        if command.dry_run:
            for sentence in step.needs():
                print(f"  {sentence}", flush=True)
        else:
            _start(step, stopped)
        if stopped:
            raise SystemExit(EXIT_REQUEUE)


def steps(command: Command) -> Iterator[Step]:
    """Yields the steps; the flags of one may depend on what the steps before have written.

    Raises:
        RecipeError: There is no such flora or recipe, or it cannot be used.
    """
    data = command.out / "data"
    packed = data
    is_folder = command.flora.is_dir()
    if is_folder:
        name = command.flora.resolve().name
        plain = {"name": name, "description": "", "collection": "", "recipe": "own_folder"}
        flora = check_section(plain, Flora, str(command.flora), what="folder")
    else:
        flora = read_flora(command.flora)
        if command.calibration_share:
            raise RecipeError(
                "--calibration-share is for a folder of class folders",
                value=command.flora,
                remedy=f"set calibration_share in {flora.collection}",
            )
        packed = command.out / "packed"
    recipe = command.recipe or flora.recipe
    # A wrong recipe ends here, missing weights too, or else in a forecast, before hours of work.
    known = read_recipe(Path(recipe))
    weights = command.weights or known.network.weights
    run_folder = command.out / "run"  # which has its own weights once it has begun
    if weights not in {"imagenet", "none"} and not (Path(weights).exists() or run_folder.exists()):
        raise RecipeError("there are no such initial weights", value=weights, remedy="give --weights FILE")
    train: list[object] = ["train", recipe, ("--weights", command.weights)]
    if flora.num_pictures:
        yield Step("forecast", _program(*train, "--forecast", flora.num_pictures), packed / MANIFEST_FILE)
    if is_folder:
        share = ("--calibration-share", command.calibration_share)
        yield Step("prepare", _program("prepare", "folder", command.flora, "--out", data, share), data / MANIFEST_FILE)
    else:
        yield from _from_collection(flora, command, packed / MANIFEST_FILE)
    bundle = command.out / "bundle"
    flags: list[object] = ["--data", packed, "--run", run_folder, "--auto-resume", *_others(data, _TRAIN)]
    yield Step("train", _program(*train, *flags), bundle / BUNDLE_FILE)
    about = ("--description", command.description or flora.description)
    flags = ["--checkpoint", run_folder / "best.pt", "--data", packed, "--out", bundle, "--name", flora.name, about]
    yield Step("export", _program("export", *flags, *_others(data, _EXPORT)), bundle / BUNDLE_FILE)
    registry = command.out / "registry"
    yield Step("promote", _program("release", "promote", bundle, registry, "--data", packed), registry / "current")
    report = command.out / "report"
    flags = ["--data", packed, "--bundle", bundle, "--out", report, *_others(data, _TEST)]
    yield Step("evaluate", _program("evaluate", *flags), report / "bundle-test.json")


def _from_collection(flora: Flora, command: Command, result: Path) -> Iterator[Step]:
    collection = flora.collection
    without = ["--without", *command.without] if command.without else []
    mirror = ("--mirror", command.mirror)
    yes = ["--yes"] if command.yes else []
    keep_free = 0
    if flora.num_pictures and _disk_of(command.root) == _disk_of(command.out):
        keep_free = round(flora.num_pictures * _PACKED / 1e9)
    read_collection(Path(collection), command.without)  # a wrong one ends here, too
    common = [collection, "--root", command.root, *without]
    wanted = Download(
        collection=Path(collection), root=command.root, without=command.without, mirror=command.mirror, dry_run=True
    )
    yield Step(
        "download",
        _program("prepare", "download", *common, mirror, ("--keep-free-gb", keep_free), *yes),
        result,
        partial(_sizes, wanted),
    )
    written = ["--out", command.out / "data", "--shards", result.parent]
    yield Step("prepare", _program("prepare", "sources", *common, *written), result)


def _disk_of(path: Path) -> int:
    """Returns the number of the disk on which a path is, or will be."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists()).stat().st_dev


def _sizes(wanted: Download) -> list[str]:
    """Asks the servers for the sizes of a download."""
    told: list[str] = []
    try:
        download(wanted, tell=told.append)
    except DataError as error:
        told.append(str(error))
    return told


def read_flora(path: Path) -> Flora:
    """Reads a TOML file, or the one in training/recipes of that name.

    Raises:
        RecipeError: There is no such flora, or it cannot be used.
    """
    known = sorted(RECIPES.glob("flora_*.toml"))
    name = path if path.is_file() or path.suffix else Path(f"flora_{str(path).removeprefix('flora_')}")
    content, origin = read_toml(name, known=known, what="folder or flora")
    return check_section(content, Flora, origin, what="flora")


def _program(name: object, *arguments: object) -> list[str]:
    words = [word for argument in arguments for word in _words(argument)]
    return [os.path.relpath(_PROJECT / "training" / f"{name}.py"), *words]


def _words(argument: object) -> list[str]:
    """Returns the words of an argument: a value, or a flag and its value; nothing for a flag whose value is none."""
    if isinstance(argument, Path) and str(argument).startswith("-"):
        return [f"./{argument}"]
    if not isinstance(argument, tuple):
        return [str(argument)]
    flag, value = argument
    if str(value).startswith("-"):
        return [f"{flag}={value}"]
    return [flag, str(value)] if value else []


def _others(data: Path, unknown: str) -> list[str]:
    """Returns the flags for the pictures of no class that the data set came with."""
    lists = {"--negatives": data / NEGATIVES_LIST, "--unknown": data / unknown}
    return [word for flag, path in lists.items() if path.is_file() for word in (flag, str(path))]


def _start(step: Step, stopped: list[int]) -> None:
    """Runs a program to its end, and ends with its exit code if it fails.

    It gets the signals that stop this one. They are added to `stopped`, and nothing is started after them.
    """
    program, *arguments = step.arguments
    launcher = [sys.executable]
    if step.name == "train" and _num_gpus() > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "gpu", "--max-restarts", "3"]
    # Longer than torchrun's 30 s, for the last step and the checkpoint.
    environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "240"} | os.environ | {STARTED_BY_FLORA: "1"}
    process = subprocess.Popen([*launcher, program, *arguments], env=environment)

    def stop(number: int, _frame: object) -> None:
        stopped.append(number)
        process.terminate()

    # Ctrl-C reaches the program too: the terminal sends it to both. SIGTERM comes to this process alone.
    handlers = {signal.SIGINT: lambda number, _: stopped.append(number), signal.SIGTERM: stop}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    if stopped:  # since the step before
        process.terminate()
    code = process.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if code or stopped:
        flags = "; --help says where flags that its message names belong" if code == 1 else ""
        sys.stderr.write(f"{step.name} ended with code {code}; the same command continues there{flags}\n")
        code = code if code >= 0 else 128 - code
        raise SystemExit(EXIT_REQUEUE if signal.SIGTERM in stopped else code or EXIT_INTERRUPTED)


def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


if __name__ == "__main__":
    main()
