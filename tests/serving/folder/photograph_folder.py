"""A folder of drawn photographs, and the rows of a run."""

import csv
import json
import subprocess
import sys
from unittest.mock import patch

import pyarrow.parquet as pq

from serving.folder import run as run_module
from serving.folder.command import IdentifyFolder
from serving.folder.run import PART_ROWS, run
from tests.make import ROOT
from tests.serving.program import ENVIRONMENT
from tests.serving.tiny import BLUE, GREEN, RED, InProcessDecoder, jpeg

NAMES = {RED: "Rosa canina", GREEN: "Bellis perennis", BLUE: "Crocus"}
COLORS = {"a.jpg": RED, "b.jpg": GREEN, "c.jpg": RED, "deep/d.jpg": BLUE, "deep/e.jpg": GREEN}


def draw_photographs(folder, colors):
    """Writes a photograph for each path, in the color of a plant that the tiny bundle knows."""
    for path, color in colors.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(color))
    return folder


def identify(photographs, out, bundle, *, part_rows=PART_ROWS, decoder=None, **flags):
    """Runs the program in this process; returns its exit code."""
    command = IdentifyFolder(photographs=str(photographs), out=str(out), bundle=bundle, **flags)
    with patch.object(run_module, "PART_ROWS", part_rows):
        return run(command, decoder or InProcessDecoder())


def program(part_rows):
    """Returns the words that start the program in a process of its own, with so many rows in a part."""
    main = "from serving.folder import run; run.PART_ROWS = {}; from serving.identify_folder import main; main()"
    return [sys.executable, "-c", main.format(part_rows)]


def start(photographs, out, bundle, *flags, part_rows=PART_ROWS, environment=ENVIRONMENT, **options):
    """Starts the program in a process of its own."""
    command = [*program(part_rows), photographs, "--out", out, "--bundle", bundle, *flags]
    return subprocess.Popen(command, cwd=ROOT, env=environment, **options)


def rows_of(out):
    """Returns the rows of a table by the name of their plant; the CSV file has the same ones."""
    rows = pq.read_table(out / "results.parquet").to_pylist()
    with (out / "results.csv").open(encoding="utf-8-sig", newline="") as stream:
        assert [line["group"] for line in csv.DictReader(stream)] == [row["group"] for row in rows]
    by_name = {row["group"]: row for row in rows}
    assert len(by_name) == len(rows), "a plant has two rows"
    return by_name


def parts(out):
    """Returns when each part was written."""
    return {path.name: path.stat().st_mtime_ns for path in out.glob("parts/*.parquet")}


def written(out, name="run"):
    """What a run has written about itself."""
    return json.loads((out / f"{name}.json").read_bytes())


def write_list(path, *rows):
    """Writes a list; returns its path."""
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    return path
