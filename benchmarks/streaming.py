"""Program: compares packing photographs from an archive as it lies with unpacking it first.

python benchmarks/streaming.py [--species 400] [--rounds 3] [--out FILE.json]

Drawn photographs of 500 px, 50 of each species, in the layout of iNaturalist 2021 mini, become a .tar.gz. In turns,
`prepare.py sources` reads the archive, and reads what `tar` has unpacked.
"""

import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec

from benchmarks.result import ROOT, Measured, quotients, spread, table, write_result
from models.program import run_program
from training.drawn import Drawn, species_name, write_class_folders

_PICTURES = 50
_COLLECTION = 'name = "drawn"\n[sources.drawn]\nlayout = "inaturalist"\nroot = "drawn"\n'


class Streaming(msgspec.Struct, frozen=True, kw_only=True):
    """Measures time, memory and disk of archives that are read where they lie."""

    species: int = 400
    """Each has 50 photographs."""
    rounds: int = 3
    """Each measures both ways."""
    out: Path | None = None
    """File for the result, JSON."""


class Result(Measured, frozen=True, kw_only=True):
    """The result of the measurement."""

    num_pictures: int
    archive_gb: float
    shards_gb: float
    streamed_s: list[float]
    unpack_s: list[float]
    packed_s: list[float]
    """From the unpacked folder."""
    peak_mb: float
    """Most resident memory of a process that streams, MB."""
    more_disk_gb: float
    """What streaming wrote beside the shards."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Streaming, measure, description=__doc__)


def measure(command: Streaming) -> Result:
    """Draws the archive, and packs it both ways in turns."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        num_pictures = write_archive(root, command.species)
        archived, unpacked = root / "archived", root / "unpacked"
        archive = archived / "drawn" / "train_mini.tar.gz"
        streamed_s: list[float] = []
        unpack_s: list[float] = []
        packed_s: list[float] = []
        peak_mb = 0.0
        for number in range(command.rounds):
            streamed_s.append(prepare(archived, root / f"streamed{number}"))
            # Later the other programs count too.
            peak_mb = peak_mb or resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
            unpack_s.append(seconds("tar", "-xzf", archive, "-C", unpacked / "drawn"))
            packed_s.append(prepare(unpacked, root / f"packed{number}"))
            shutil.rmtree(unpacked / "drawn" / "train_mini")
        result = Result(
            num_pictures=num_pictures,
            archive_gb=archive.stat().st_size / 1e9,
            shards_gb=size_gb(root / "streamed0" / "shards"),
            more_disk_gb=size_gb(root / "streamed0" / "data"),
            streamed_s=streamed_s,
            unpack_s=unpack_s,
            packed_s=packed_s,
            peak_mb=round(peak_mb),
        )
    write_result(result, markdown(result), command.out)
    return result


def write_archive(root: Path, num_species: int) -> int:
    """Draws the photographs, and writes them as ROOT/archived/drawn/train_mini.tar.gz; ROOT/unpacked has the lists."""
    drawn = root / "train_mini"
    paths = write_class_folders(Drawn(out=drawn, species=num_species, pictures=_PICTURES, size_px=500))
    categories = [
        {"id": number, "name": species_name(number).name, "kingdom": "Plantae"} for number in range(num_species)
    ]
    images = [{"id": number, "file_name": f"train_mini/{path}"} for number, path in enumerate(paths)]
    annotations = [{"image_id": number, "category_id": number // _PICTURES} for number in range(len(paths))]
    lists = {"train_mini.json": (images, annotations), "val.json": ([], [])}
    for place in (root / "archived", root / "unpacked"):
        (place / "drawn").mkdir(parents=True)
        (place / "collection.toml").write_text(_COLLECTION)
        for name, (pictures, labels) in lists.items():
            content = {"images": pictures, "annotations": labels, "categories": categories, "licenses": []}
            (place / "drawn" / name).write_bytes(msgspec.json.encode(content))
    with tarfile.open(root / "archived" / "drawn" / "train_mini.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(drawn, "train_mini")
    shutil.rmtree(drawn)
    return len(paths)


def prepare(place: Path, out: Path) -> float:
    """Prepares and packs the collection of a folder, and returns the seconds that it took."""
    flags = ["--root", place, "--out", out / "data", "--shards", out / "shards"]
    return seconds(sys.executable, ROOT / "training" / "prepare.py", "sources", place / "collection.toml", *flags)


def seconds(*command: object) -> float:
    """Runs a command, and returns the wall seconds that it took."""
    started = time.perf_counter()
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return round(time.perf_counter() - started, 2)


def size_gb(folder: Path) -> float:
    """Returns the size of all files of a folder, GB."""
    return sum(path.stat().st_size for path in folder.rglob("*")) / 1e9


def markdown(result: Result) -> str:
    """The result as a table."""
    both_s = map(sum, zip(result.unpack_s, result.packed_s, strict=True))
    rows = [
        ["from the archive", spread(result.streamed_s, 0, " s")],
        ["unpacking", spread(result.unpack_s, 0, " s")],
        ["from the unpacked folder", spread(result.packed_s, 0, " s")],
        ["from the archive, against both", spread(quotients(result.streamed_s, both_s), 2)],
        ["most memory of a process", f"{result.peak_mb:.0f} MB"],
        [
            "archive, shards, beside them",
            f"{result.archive_gb:.2f}, {result.shards_gb:.2f}, {result.more_disk_gb:.3f} GB",
        ],
    ]
    text = table(["what", "median [range]"], rows)
    return f"{result.machine}; {result.num_pictures:,} photographs of 500 px:\n\n{text}"


if __name__ == "__main__":
    main()
