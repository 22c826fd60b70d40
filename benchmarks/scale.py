"""Program: measures time and memory of preparing 1.6 million pictures, without decoding them.

python benchmarks/scale.py [--pictures 1600000] [--out FILE.json]

Generated records of 5,337 classes with observations, copies, near copies and published splits go through copies,
near-copy groups, splits, report and manifest. Then the manifest is opened, and the sampler yields its first batch.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np

from benchmarks.result import Measured, rounded, table, write_result
from models.program import run_program
from training.dataset.classes import build_classes
from training.dataset.collection import Collection, SourceEntry
from training.dataset.manifest import Manifest
from training.dataset.sources.record import ImageInfo, LabeledPicture, PictureRecord, SourceClass, Split
from training.loading.sampler import EpochBatches
from training.prepare import DatasetSpec, write_dataset

_SHARES = {"inat2021": (4271, 0.75), "plantnet300k": (1019, 0.2), "house_plants": (47, 0.05)}
_NEAR_COPIES = 0.002
_COPIES = 0.001


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Measures time and memory of a preparation without decoding."""

    pictures: int = 1_600_000
    """Number of pictures to generate."""
    out: Path | None = None
    """File for the result, JSON."""


class Result(Measured, frozen=True, kw_only=True):
    """The result of the measurement."""

    num_pictures: int
    num_outputs: int
    num_kept: int
    seconds: dict[str, float]
    """Step -> wall seconds."""
    peak_gb: float
    """Peak resident memory of the process, GB."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Scale, measure, description=__doc__)


def measure(command: Scale) -> Result:
    """Runs all steps and measures each."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "data"
        with timed("generate the records", seconds):
            spec, pictures = generate(command.pictures, out)
        with timed("copies, groups, splits, manifest, report", seconds):
            write_dataset(spec, pictures, [], out)
        del pictures
        with timed("open for the first time", seconds):
            Manifest(out)
        with timed("open", seconds):
            manifest = Manifest(out)
        with timed("first batch of the sampler", seconds):
            batches = EpochBatches(manifest.rows_of("train"), batch_size=16, seed=0)
            batches.side_px = 380
            next(iter(batches))
        result = Result(
            num_pictures=command.pictures,
            num_outputs=len(manifest.taxonomy.outputs),
            num_kept=len(manifest),
            seconds=seconds,
            peak_gb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
        )
    write_result(result, markdown(result), command.out)
    return result


def generate(num_pictures: int, root: Path) -> tuple[DatasetSpec, list[LabeledPicture]]:
    """Generates the pictures of three sources as they are after decoding; two sources publish a test split."""
    random = np.random.default_rng(0)
    plants = {source: _plants(source, count) for source, (count, _) in _SHARES.items()}
    classes = build_classes(plants, "within_sources")
    hashes = random.integers(0, 2**64, num_pictures, dtype=np.uint64)
    near = random.random(num_pictures) < _NEAR_COPIES
    hashes[near] = np.roll(hashes, 1)[near] ^ np.uint64(5)  # two bits away from the previous picture
    copies = random.random(num_pictures) < _COPIES
    pictures: list[LabeledPicture] = []
    for source, (count, share) in _SHARES.items():
        for number in range(round(share * num_pictures)):
            at = len(pictures)
            if at >= num_pictures:
                break
            plant = plants[source][int(count * (number / (share * num_pictures)) ** 2) % count]
            record = _record(source, plant, number)
            facts = ImageInfo(
                sha256=f"{at - int(copies[at]):064x}",
                num_bytes=60_000,
                width=500,
                height=375 + at % 200,
                perceptual_hash=int(hashes[at]),
            )
            label = classes.labels[source, plant.class_id]
            pictures.append(LabeledPicture(source=source, record=record, label=label, info=facts))
    entries = {source: SourceEntry(layout="image_folder", root=root / source) for source in _SHARES}
    collection = Collection(name="scale", sources=entries, calibration_share=0.02, validation_share=0.05)
    return DatasetSpec(collection, {source: root / source for source in _SHARES}, classes), pictures


def _plants(source: str, count: int) -> list[SourceClass]:
    return [
        SourceClass(
            class_id=str(number), name=f"{_word(number // 8).capitalize()} {source[:5].strip('2')}{_word(number)}"
        )
        for number in range(count)
    ]


def _word(number: int) -> str:
    letters = "abdefgilmnoprstuv"
    word = ""
    for _ in range(5):
        number, at = divmod(number, len(letters))
        word += letters[at] + "aeiou"[at % 5]
    return word + "um"


def _record(source: str, plant: SourceClass, number: int) -> PictureRecord:
    split: Split | None = None
    if source != "house_plants":
        split = "test" if number % 27 == 0 else "train"
    return PictureRecord(
        path=f"{split or 'all'}/{plant.class_id}/{number:08d}-0f1e-2d3c-4b5a-69788796a5b4.jpg",
        plant=plant,
        split=split,
        group=str(number // 2) if source == "plantnet300k" else "",
        author=f"author {number % 5000}",
        license=("cc-by-nc", "cc-by-sa", "cc-by-nc-sa")[number % 3],
        taken_on=date(2015 + number % 8, 1 + number % 12, 1 + number % 28),
        coordinates=(number % 120 - 60.0, number % 360 - 180.0) if number % 10 else None,
    )


@contextmanager
def timed(step: str, seconds: dict[str, float]) -> Iterator[None]:
    """Notes the wall seconds of a step, and prints them."""
    started = time.perf_counter()
    yield
    seconds[step] = round(time.perf_counter() - started, 2)
    print(f"{step}: {seconds[step]:.1f} s", flush=True)


def markdown(result: Result) -> str:
    """The result as a table."""
    rows = [[step, rounded(seconds, "s")] for step, seconds in result.seconds.items()]
    rows += [["all of it", rounded(sum(result.seconds.values()), "s")], ["most memory", f"{result.peak_gb:.1f} GB"]]
    kept = f"{result.num_kept:,} of {result.num_pictures:,} pictures kept, {result.num_outputs:,} outputs"
    return f"{result.machine}; {kept}:\n\n{table(['what', 'figure'], rows)}"


if __name__ == "__main__":
    main()
