"""Program: measures how many training pictures a second each loader prepares: ours, torchvision's and timm's.

python benchmarks/loader.py [--small DIR] [--camera DIR] [--rounds 7] [--out FILE.json]

Rounds are interleaved: each loader runs one epoch over the same files, then the next round begins. Ratios are taken
within a round, so that a busy machine slows all loaders alike. There are no loader processes: all work runs on one
core, and the CPU time of this process is measured beside the wall-clock time.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import torch
from PIL import Image

from benchmarks.loader_variants import Epoch, LoaderOptions, PictureSet, Variant, make_set, open_loader
from benchmarks.result import ROOT, Measured, in_turns, quotients, rounded, spread, table, write_result
from models.errors import RecipeError
from models.program import run_program

_PHOTOS = ROOT.parent / "shared" / "data"
_LETTERS: dict[Variant, str] = {
    "torchvision": "(a) torchvision",
    "timm": "(b) timm",
    "files": "(c) ours, files",
    "shards": "(d) ours, shards",
}


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """Compares training loaders."""

    small: Path = _PHOTOS / "flowers17" / "images"
    """Folder with .jpg files of about 500 px."""
    camera: Path = _PHOTOS / "photos"
    """Folder with camera files; only those of 8 megapixels and more are used."""
    sides: tuple[int, ...] = (320, 380)
    """Sides of the network input, px."""
    rounds: int = 7
    """Rounds that are counted, after one for warm-up."""
    num_small: int = 192
    """Number of small pictures in an epoch."""
    num_camera: int = 24
    """Number of camera files in an epoch; if there are fewer, they are repeated."""
    batch_size: int = 8
    """Pictures in a batch."""
    least_camera_mp: float = 7.9
    """Least size of a camera file, megapixels."""
    out: Path | None = None
    """File for the result, JSON."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.batch_size < 1 or min(self.num_small, self.num_camera) < self.batch_size:
            raise RecipeError(
                "nothing would be measured",
                limit="--rounds of at least 1, and pictures for at least one batch of at least 1",
                remedy="raise --rounds, --num-small or --num-camera, or lower --batch-size",
            )


class Rate(msgspec.Struct, frozen=True):
    """The speed of one loader with one set of options."""

    variant: Variant
    per_s: list[float]
    """Pictures per second of wall-clock time, of each round."""
    per_core_s: list[float]
    """Pictures per second of CPU time, of each round."""


class Comparison(msgspec.Struct, frozen=True):
    """All loaders with one set of options."""

    pictures: str
    num_pictures: int
    megapixels: tuple[float, float]
    setting: LoaderOptions
    rates: list[Rate]

    def ratios(self, faster: Variant, slower: Variant) -> list[float]:
        """Speed of one loader relative to another, round by round."""
        per_s = {rate.variant: rate.per_core_s for rate in self.rates}
        return quotients(per_s[faster], per_s[slower])


class Result(Measured, frozen=True, kw_only=True):
    """The result of the program."""

    rounds: int
    comparisons: list[Comparison]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Loader, measure, description=__doc__)


def measure(command: Loader) -> Result:
    """Measures all loaders with all options, prints a table and, with `out`, writes the result.

    Raises:
        DataError: A folder has no pictures.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        sets = _make_sets(command, Path(scratch))
        comparisons = [
            _compare(pictures, LoaderOptions(side_px, augmentation, command.batch_size), command.rounds)
            for pictures in sets
            for side_px in command.sides
            for augmentation in ("crop and flip", "RandAugment")
        ]
    result = Result(rounds=command.rounds, comparisons=comparisons)
    write_result(result, markdown(result), command.out)
    return result


def markdown(result: Result) -> str:
    """The result as a table of medians: pictures per second of CPU time."""
    rows = []
    for comparison in result.comparisons:
        setting = comparison.setting
        rates = {rate.variant: rounded(statistics.median(rate.per_core_s)) for rate in comparison.rates}
        rows.append(
            [
                f"{comparison.pictures}, {comparison.megapixels[0]:.2g} to {comparison.megapixels[1]:.2g} MP",
                str(setting.side_px),
                "with RandAugment" if setting.augmentation == "RandAugment" else setting.augmentation,
                *(rates.get(variant, "") for variant in _LETTERS),
                spread(comparison.ratios("shards", "timm"), 2),
                spread(comparison.ratios("files", "torchvision"), 2),
            ]
        )
    columns = ["pictures", "px", "augmentation", *_LETTERS.values(), "(d) / (b)", "(c) / (a)"]
    return f"{result.machine}; {result.rounds} rounds, median [range]:\n\n{table(columns, rows)}"


def _make_sets(command: Loader, scratch: Path) -> list[PictureSet]:
    small = sorted(command.small.rglob("*.[jJ][pP][gG]"))
    camera = []
    for path in sorted(command.camera.rglob("*.[jJ][pP][gG]")):
        with Image.open(path) as opened:
            if opened.width * opened.height >= command.least_camera_mp * 1e6:
                camera.append(path)
    spread = small[:: max(len(small) // command.num_small, 1)]  # of all classes
    return [
        make_set("small", spread, command.num_small, scratch),
        make_set("camera", camera, command.num_camera, scratch),
    ]


def _compare(pictures: PictureSet, options: LoaderOptions, rounds: int) -> Comparison:
    """Opens all loaders with the same options and runs them in turns."""
    loaders = {variant: open_loader(variant, pictures, options) for variant in _LETTERS}
    speeds: dict[Variant, list[tuple[float, float]]] = {variant: [] for variant in _LETTERS}
    label = f"{pictures.name}, {options.side_px} px, {options.augmentation}"
    for number, variant in in_turns(loaders, rounds + 1, label):
        speed = _run_epoch(loaders[variant], number)
        if number > 0:  # the first round starts processes and fills caches
            speeds[variant].append(speed)
    rates = [Rate(variant, [wall for wall, _ in pairs], [cpu for _, cpu in pairs]) for variant, pairs in speeds.items()]
    return Comparison(pictures.name, pictures.num_pictures, pictures.megapixels, options, rates)


def _run_epoch(loader: Epoch, number: int) -> tuple[float, float]:
    """Pictures per second of wall-clock time, and of the CPU time of this process."""
    count = 0
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for pixels in loader(number):
        count += len(pixels)
    return count / (time.perf_counter() - wall_s), count / (time.process_time() - cpu_s)


if __name__ == "__main__":
    main()
