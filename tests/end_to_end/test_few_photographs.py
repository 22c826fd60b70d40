"""The botanist's folder: twelve plants with twenty photographs each end in names, which are said to be guesses."""

import csv
import random
import sys

import pytest

from models.answer import Question, answer_plant
from models.bundle import load_bundle
from models.preprocess import picture_to_input
from models.ranking import NAMES_ARE_GUESSES
from tests.end_to_end.test_demonstration import PHOTOS, ROOT, on_photos
from tests.make import ran

SETS = [PHOTOS / "plants" / name for name in ("garden_flowers", "wild_plants")]
WEIGHTS = PHOTOS / "weights" / "tf_efficientnetv2_b0.safetensors"
NUM_TAXA, NUM_KNOWN, NUM_NEW = 12, 20, 40


def draw_photographs():
    """Draws the taxa, and the photographs of each: scientific name -> paths."""
    photographs = {}
    for folder in SETS:
        with (folder / "labels.csv").open(newline="") as stream:
            for row in csv.DictReader(stream):
                if row["rank"] == "species":
                    photographs.setdefault(row["scientific_name"], []).append(folder / row["path"])
    chance = random.Random(1)
    names = sorted(name for name, paths in photographs.items() if len(paths) >= NUM_KNOWN + NUM_NEW)
    return {name: chance.sample(photographs[name], NUM_KNOWN + NUM_NEW) for name in chance.sample(names, NUM_TAXA)}


def verdicts(bundle, paths):
    session, model = bundle.open_session("fp32"), bundle.answer_model("fp32")
    for path in paths:
        pixels, _ = picture_to_input(path.read_bytes(), bundle.record.input)
        yield answer_plant(*session.run(pixels[None]), model, Question()).verdict


@on_photos
@pytest.mark.slow
def test_twelve_plants_with_twenty_photographs_each_end_in_names(tmp_path):
    drawn = draw_photographs()
    for name, paths in drawn.items():
        (tmp_path / "plants" / name).mkdir(parents=True)
        for path in paths[:NUM_KNOWN]:
            (tmp_path / "plants" / name / path.name).symlink_to(path)
    recipe = (ROOT / "training" / "recipes" / "plants.toml").read_text()
    recipe = recipe.replace('weights = "imagenet"', f'weights = "{WEIGHTS}"').replace('amp = "bf16"', 'amp = "off"')
    (tmp_path / "recipe.toml").write_text(recipe)
    flags = ["--out", tmp_path / "out", "--recipe", tmp_path / "recipe.toml"]
    program = [sys.executable, ROOT / "training" / "flora.py", tmp_path / "plants", *flags]
    done = ran(*program)
    assert done.returncode == 0, done.stderr[-3000:]
    assert NAMES_ARE_GUESSES in done.stdout
    bundle = load_bundle(tmp_path / "out" / "registry" / "current")
    found = [(name, verdict) for name, paths in drawn.items() for verdict in verdicts(bundle, paths[NUM_KNOWN:])]
    named = [(name, verdict.name) for name, verdict in found if verdict.rank == "species"]
    assert len(named) >= len(found) / 2
    assert sum(name == given for name, given in named) >= 0.9 * len(named)
