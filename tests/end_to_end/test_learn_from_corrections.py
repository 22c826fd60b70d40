"""The way from corrections to the next bundle: people correct a flower that the model confuses."""

import csv
import subprocess
import sys

import httpx
import numpy as np
import pytest

from models.answer import Question, answer_plant
from models.bundle import load_bundle
from models.preprocess import picture_to_input
from serving.access.keys import make_key
from tests.end_to_end.test_demonstration import PHOTOS, ROOT, on_photos
from tests.serving.program import service

FLOWERS = PHOTOS / "flowers17"
WEIGHTS = PHOTOS / "weights" / "tf_efficientnetv2_b0.safetensors"
CONFUSED, NUM_KNOWN, NUM_CORRECTED = "Galanthus nivalis", 3, 60
OTHERS = 20  # training photographs of each other flower, so that this takes minutes
RECIPE = """
[data]
workers = 1
[network]
architecture = "tf_efficientnetv2_b0"
[schedule]
epochs = 4
batch_size = 16
backbone_lr = 3e-4
head_lr = 1e-3
warmup_epochs = 0.5
[pictures]
picture_px = 96
serve_px = 96
[hardware]
amp = "off"
device = "cpu"
"""


def run(*arguments):
    program = [sys.executable, *map(str, arguments)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


def rows():
    with (FLOWERS / "labels.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def write_table(path, chosen):
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("path", "scientific_name", "split"))
        writer.writerows((FLOWERS / row["path"], row["scientific_name"], row["split"]) for row in chosen)


def make_bundle(folder, data, weights, *flags):
    source = ("--data", data, "--run", folder / "run", "--weights", weights)
    run("training/train.py", folder / "recipe.toml", *source, *flags)
    checkpoint = folder / "run" / "last.pt"
    run("training/export.py", "--checkpoint", checkpoint, "--data", data, "--out", folder / "bundle", "--with-weights")
    return folder / "bundle"


def right(bundle, chosen):
    """Whether each photograph is named right."""
    session, model = bundle.open_session("fp32"), bundle.answer_model("fp32")
    found = []
    for row in chosen:
        pixels, _ = picture_to_input((FLOWERS / row["path"]).read_bytes(), bundle.record.input)
        answer = answer_plant(*session.run(pixels[None]), model, Question())
        found.append(answer.taxa[0].taxon.scientific_name == row["scientific_name"])
    return np.array(found)


def correct(bundle, folder, chosen):
    secret, key = make_key("ann")
    flags = ("--corrections", folder, "--api-keys", key.line)
    with service(bundle, *flags) as running, running.client() as client:
        client.headers["Authorization"] = f"Bearer {secret}"
        for row in chosen:
            files = {"image": (FLOWERS / row["path"]).read_bytes()}
            asked = client.post("/identify", files=files).json()
            said = {"taxon": row["scientific_name"], "certain": "true"}
            answer = client.post(f"/identify/{asked['request_id']}/correction", files=files, params=said)
            assert answer.status_code == httpx.codes.OK, answer.text


@on_photos
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_sixty_corrections_of_a_confused_flower_raise_its_recall_and_cost_the_others_nothing(tmp_path):
    train = [row for row in rows() if row["split"] == "train"]
    test = [row for row in rows() if row["split"] == "test"]
    confused = [row for row in train if row["scientific_name"] == CONFUSED]
    known = confused[:NUM_KNOWN]
    for name in sorted({row["scientific_name"] for row in train} - {CONFUSED}):
        known += [row for row in train if row["scientific_name"] == name][:OTHERS]
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "recipe.toml").write_text(RECIPE)
    write_table(tmp_path / "mine.csv", known + test)
    run("training/prepare.py", "table", tmp_path / "mine.csv", "--out", tmp_path / "data")
    first = make_bundle(old, tmp_path / "data", WEIGHTS)

    correct(first, tmp_path / "kept", confused[NUM_KNOWN : NUM_KNOWN + NUM_CORRECTED])
    confirmed = tmp_path / "confirmed"
    run("-m", "serving.corrections", "export", tmp_path / "kept", "--reviewer", "ann", "--out", confirmed)
    (tmp_path / "both.toml").write_text(
        'name = "both"\nmerge = "across_sources"\n[sources.mine]\nlayout = "table"\nroot = "mine.csv"\n'
        '[sources.corrections]\nlayout = "table"\nroot = "confirmed/corrections.csv"\n'
    )
    run("training/prepare.py", "sources", tmp_path / "both.toml", "--root", tmp_path, "--out", tmp_path / "more")
    gently = (
        "--backbone-lr",
        "1e-4",
        "--head-lr",
        "3e-4",
        "--sampling",
        "class_balanced",
    )  # it knows the others already
    second = make_bundle(new, tmp_path / "more", first / "weights.safetensors", *gently)

    before, after = (right(load_bundle(bundle), test) for bundle in (first, second))
    is_confused = np.array([row["scientific_name"] == CONFUSED for row in test])
    print(
        f"{CONFUSED}: {before[is_confused].mean():.3f} -> {after[is_confused].mean():.3f} of {is_confused.sum()}; "
        f"others: {before[~is_confused].mean():.3f} -> {after[~is_confused].mean():.3f} of {(~is_confused).sum()}"
    )
    assert after[is_confused].mean() >= before[is_confused].mean() + 0.2
    assert after[~is_confused].mean() >= before[~is_confused].mean() - 0.02
