"""Program: how many training pictures a second each loader prepares, ours beside torchvision's and timm's.

python benchmarks/loader.py [--small DIR] [--camera DIR] [--rounds 7] [--out FILE.json]

Rounds are interleaved: each loader in turn runs one epoch over the same files, then the next round begins, and ratios
are taken within a round, so that a busy machine slows all alike. With no loader processes everything runs on one core,
and the processor seconds of this process are counted beside those of the clock.
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
import tyro
from PIL import Image
from rich.progress import track

from benchmarks.loader_variants import Augmentation, Epoch, PictureSet, Setting, Variant, make_set, open_loader
from models.errors import RecipeError
from training.machine import Machine, this_machine
from training.program import run_program

_PHOTOS = Path(__file__).resolve().parents[2] / "shared" / "data"
_LETTERS: dict[Variant, str] = {
    "torchvision": "(a) torchvision",
    "timm": "(b) timm",
    "timm, all operations": "(b') timm, all operations",
    "files": "(c) ours, files",
    "shards": "(d) ours, shards",
}


class Loader(msgspec.Struct, frozen=True, kw_only=True):
    """Compares training loaders."""

    small: Path = _PHOTOS / "flowers17" / "images"
    """Folder of pictures of about 500 px; searched for .jpg files."""
    camera: Path = _PHOTOS / "photos"
    """Folder of camera files; those of 8 megapixels and more are taken."""
    sides: tuple[int, ...] = (320, 380)
    """Sides of the network input, px."""
    rounds: int = 7
    """Rounds that count; one more, that does not, comes first."""
    num_small: int = 192
    """Small pictures an epoch."""
    num_camera: int = 24
    """Camera files an epoch; the same ones are taken again where there are fewer."""
    batch_size: int = 8
    """Pictures a batch."""
    workers: tuple[int, ...] = (0,)
    """Numbers of loader processes to measure with; 0 loads in one process, on one core."""
    least_camera_mp: float = 7.9
    """Megapixels from which a file counts as a camera's."""
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
    """What one loader did in one setting."""

    variant: Variant
    per_s: list[float]
    """Pictures a second, by the clock, of each round."""
    per_core_s: list[float]
    """Pictures a second of processor time, of each round; empty where loader processes did the work."""


class Comparison(msgspec.Struct, frozen=True):
    """All loaders in one setting."""

    pictures: str
    num_pictures: int
    megapixels: tuple[float, float]
    setting: Setting
    rates: list[Rate]

    def ratios(self, faster: Variant, slower: Variant) -> list[float]:
        """How many times as many pictures the one prepared as the other, round by round."""
        per_s = {rate.variant: rate.per_core_s or rate.per_s for rate in self.rates}
        return [first / second for first, second in zip(per_s[faster], per_s[slower], strict=True)]


class Result(msgspec.Struct, frozen=True):
    """What was measured."""

    machine: Machine
    rounds: int
    comparisons: list[Comparison]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(Loader, description=__doc__)))


def measure(command: Loader) -> Result:
    """Runs all settings, prints a table and, with `out`, writes the result.

    Raises:
        DataError: A folder has no pictures.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        sets = _make_sets(command, Path(scratch))
        comparisons = [
            _compare(pictures, Setting(side_px, augmentation, command.batch_size, workers), command.rounds)
            for pictures in sets
            for workers in command.workers
            for side_px in command.sides
            for augmentation in ("crop and flip", "RandAugment")
        ]
    result = Result(this_machine(), command.rounds, comparisons)
    print(markdown(result))
    if command.out is not None:
        command.out.parent.mkdir(parents=True, exist_ok=True)
        command.out.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


def markdown(result: Result) -> str:
    """The result as a table: median and, in brackets, range of the rounds."""
    lines = [
        f"{result.machine.processor}, {result.rounds} rounds; pictures a second: of one core's time with no loader "
        "processes, else by the clock. Median [range].",
        "",
        f"| pictures | px | augmentation | processes | {' | '.join(_LETTERS.values())} | (d) / (b) | (c) / (a) |",
        "|---" * (6 + len(_LETTERS)) + "|",
    ]
    for comparison in result.comparisons:
        setting = comparison.setting
        rates = {rate.variant: _cell(rate.per_core_s or rate.per_s, digits=1) for rate in comparison.rates}
        cells = [
            f"{comparison.pictures} ({comparison.megapixels[0]:.2g} to {comparison.megapixels[1]:.2g} MP)",
            str(setting.side_px),
            setting.augmentation,
            str(setting.workers),
            *(rates.get(variant, "") for variant in _LETTERS),
            _cell(comparison.ratios("shards", "timm"), digits=2),
            _cell(comparison.ratios("files", "torchvision"), digits=2),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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


def _compare(pictures: PictureSet, setting: Setting, rounds: int) -> Comparison:
    """Opens all loaders of a setting and runs them in turns."""
    variants = _variants(setting.augmentation)
    loaders = {variant: open_loader(variant, pictures, setting) for variant in variants}
    taken: dict[Variant, list[tuple[float, float]]] = {variant: [] for variant in variants}
    told = f"{pictures.name}, {setting.side_px} px, {setting.augmentation}, {setting.workers} processes"
    for number in track(range(rounds + 1), description=told):
        first = number % len(variants)  # none always follows the same one
        for variant in variants[first:] + variants[:first]:
            speeds = _run_epoch(loaders[variant], number)
            if number > 0:  # the first round starts processes and fills caches
                taken[variant].append(speeds)
    rates = [
        Rate(variant, [by_clock for by_clock, _ in speeds], [] if setting.workers else [own for _, own in speeds])
        for variant, speeds in taken.items()
    ]
    return Comparison(pictures.name, pictures.num_pictures, pictures.megapixels, setting, rates)


def _variants(augmentation: Augmentation) -> list[Variant]:
    """Without RandAugment there is but one way to run timm."""
    return [variant for variant in _LETTERS if augmentation == "RandAugment" or variant != "timm, all operations"]


def _run_epoch(loader: Epoch, number: int) -> tuple[float, float]:
    """Pictures a second of the clock and of this process's processor time."""
    count = 0
    clock, own = time.perf_counter(), time.process_time()
    for pixels in loader(number):
        count += len(pixels)
    return count / (time.perf_counter() - clock), count / (time.process_time() - own)


def _cell(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f} to {max(values):.{digits}f}]"


if __name__ == "__main__":
    main()
