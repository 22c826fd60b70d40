"""The botanist's folder: twelve plants with twenty photographs each end in names, which are said to be guesses."""

import random
import sys

import pytest

from models.bundle import load_bundle
from models.ranking import NAMES_ARE_GUESSES
from tests.end_to_end.photographs import WEIGHTS, answers, by_name, link, listed
from tests.make import PHOTOS, kill_when, ran

SETS = [PHOTOS / "plants" / name for name in ("garden_flowers", "wild_plants")]
NUM_TAXA, NUM_KNOWN, NUM_NEW = 12, 20, 40


def draw_photographs():
    """Draws the taxa, and the photographs of each: scientific name -> paths."""
    rows = [row for folder in SETS for row in listed(folder) if row["rank"] == "species"]
    photographs, chance = by_name(rows), random.Random(1)
    names = sorted(name for name, paths in photographs.items() if len(paths) >= NUM_KNOWN + NUM_NEW)
    return {name: chance.sample(photographs[name], NUM_KNOWN + NUM_NEW) for name in chance.sample(names, NUM_TAXA)}


@pytest.mark.photos
@pytest.mark.slow
def test_twelve_plants_with_twenty_photographs_each_end_in_names_after_three_kills(tmp_path):
    drawn = draw_photographs()
    link({name: paths[:NUM_KNOWN] for name, paths in drawn.items()}, tmp_path / "plants")
    out = tmp_path / "out"
    program = [sys.executable, "training/flora.py", tmp_path / "plants", "--out", out]
    program += ["--recipe", "probe", "--weights", WEIGHTS]
    for written in ("data/audit.sqlite", "data/features-*/*", "run/best.pt"):
        kill_when(lambda written=written: [*out.glob(written)], *program)
    done = ran(*program)
    assert done.returncode == 0, done.stderr[-3000:]
    assert NAMES_ARE_GUESSES in done.stdout
    bundle = load_bundle(out / "registry" / "current")
    found = [(name, answer.verdict) for name, paths in drawn.items() for answer in answers(bundle, paths[NUM_KNOWN:])]
    named = [(name, verdict.name) for name, verdict in found if verdict.rank == "species"]
    assert len(named) >= len(found) / 2
    assert sum(name == given for name, given in named) >= 0.9 * len(named)
