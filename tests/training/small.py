"""Drawn flowers and short training runs that tests share."""

import copy
import json
import os
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from models.network import PlantNetwork
from tests.make import ROOT, ran
from tests.models.tiny import species, taxonomy_of
from tests.training.dataset.labeled import picture
from training.dataset.manifest import Manifest, SourceNote, write_manifest
from training.dataset.selection import manifest_columns
from training.engine.device import choose_device
from training.engine.loop import Trainer
from training.loading.data import training_loader
from training.loading.negatives import RunInput
from training.prepare import Folder, prepare
from training.train import parse, train

RECIPE = Path(__file__).with_name("tiny.toml")
# Folder name -> (color, shape). The names have a common and a scientific part, only a scientific, only a common one.
FLOWERS = {
    "Red rose (Rosa rubra)": ("crimson", "ellipse"),
    "Iris caerulea": ("royalblue", "rectangle"),
    "Buttercup": ("gold", "polygon"),
}


def draw(color, shape, variant, size=(80, 64)):
    """A picture of a colored shape on a noisy background; `variant` seeds its position."""
    random = np.random.default_rng(variant)
    meadow = np.array([90, 140, 80]) + random.integers(-30, 30, (size[1], size[0], 1))
    drawn = Image.fromarray(np.broadcast_to(meadow, (size[1], size[0], 3)).astype(np.uint8))
    left, top = (int(random.integers(2, side // 3)) for side in size)
    right, bottom = left + size[0] // 2, top + size[1] // 2
    pen = ImageDraw.Draw(drawn)
    if shape == "polygon":
        pen.polygon([(left, bottom), (right, bottom), ((left + right) / 2, top)], fill=color)
    else:
        getattr(pen, shape)((left, top, right, bottom), fill=color)
    return drawn


def write_pictures(root, per_class=12, flowers=FLOWERS):
    """Writes a folder of JPEGs for each flower."""
    for number, (name, (color, shape)) in enumerate(flowers.items()):
        (root / name).mkdir(parents=True)
        for at in range(per_class):
            draw(color, shape, 1000 * number + at).save(root / name / f"{at:02}.jpg", quality=92)
    return root


def prepare_folder(pictures, out, **options):
    """Prepares a folder of pictures; returns the report."""
    return prepare(Folder(pictures=pictures, out=out, workers=1, **options))


def prepare_flowers(folder, per_class, **options):
    """Prepared data of drawn flowers; the pictures are in `folder/flowers`."""
    prepare_folder(write_pictures(folder / "flowers", per_class), folder / "data", **options)
    return folder / "data"


def write_things(root, count=12, first=0):
    """Writes pictures without a plant, noise in stripes, and returns their folder."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        random = np.random.default_rng(number)
        lines = np.repeat(random.integers(0, 256, (16, 1, 1)), 4, axis=0)
        noise = np.clip(lines + random.integers(-40, 40, (64, 80, 3)), 0, 255)
        Image.fromarray(noise.astype(np.uint8)).save(root / f"{number:03}.png")
    return root


def command(data, run, *flags, recipe=RECIPE):
    """The parsed command line of a training run."""
    return parse([str(recipe), "--data", str(data), "--run", str(run), *map(str, flags)])


def run_training(data, run, *flags):
    """Trains in this process."""
    train(command(data, run, *flags))
    return run


def make_trainer(data, run, *flags, network=None):
    """A trainer, by default for a new network with the outputs of the data."""
    recipe = command(data, run, *flags).recipe
    manifest = Manifest(recipe.data.data)
    network = network or PlantNetwork("test_efficientnet", len(manifest.taxonomy.outputs))
    return Trainer(RunInput.of(recipe), manifest, network, choose_device(recipe.hardware))


def batches_of(data, *flags, epoch=0, first_picture=0, side_px=32, **ranks):
    """The batches that are left of an epoch."""
    recipe = command(data, data / "unused", *flags).recipe
    loader, batches = training_loader(Manifest(data), RunInput.of(recipe), pin=False, **ranks)
    batches.epoch, batches.first_picture, batches.side_px = epoch, first_picture, side_px
    return list(loader)


def finish(trainer, **limits):
    """Runs a trainer until it ends, or raises."""
    with closing(trainer):
        return trainer.run(**limits)


def weights_of(network):
    """A copy of all weights and statistics."""
    return copy.deepcopy(network.state_dict())


def are_equal(weights, network):
    """Whether a network has these weights and statistics, bit for bit."""
    return all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())


def events(run, *kinds):
    """The events of some kinds in a run's log, in order."""
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [event for event in lines if event["event"] in kinds]


def losses_by_step(run):
    """Losses by step; of a step that was repeated after a resume, the last ones."""
    return {event["step"]: event["losses"] for event in events(run, "losses")}


def require_same_steps(run, whole, **tolerance):
    """Asserts that every step of a run has the losses of another."""
    found, expected = losses_by_step(run), losses_by_step(whole)
    assert sorted(found) == sorted(expected)
    for step, losses in expected.items():
        assert found[step] == pytest.approx(losses, **tolerance or {"abs": 1e-5}), step


def run_main(main, capsys, *arguments):
    """Runs a program in this process as the command line does; returns its exit code and standard error."""
    with patch("sys.argv", [main.__module__, *map(str, arguments)]):
        try:  # pytest.raises would keep loader processes alive until the next garbage collection
            main()
        except SystemExit as ended:
            return ended.code, capsys.readouterr().err
    raise AssertionError("the program did not raise SystemExit")


def start_program(name, *arguments, cwd=None):
    """Runs a program of training/ as a file, in a new process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return ran(sys.executable, ROOT / "training" / name, *arguments, cwd=cwd, env=environment, timeout=500)


def require_one_line(stderr, code):
    """Asserts that an error is one line with its code, without a traceback."""
    assert stderr.startswith(f"error ({code}): "), stderr
    assert stderr.count("\n") == 1, stderr
    assert "Traceback" not in stderr


def make_taxonomy(num_outputs):
    """Generated species, ten per genus."""
    return taxonomy_of(*(species(f"Genus{number // 10:04} species{number:05}") for number in range(num_outputs)))


def write_data(folder, root, pictures, taxonomy, groups=None, **more):
    """Writes a manifest of (path below root, output key, split), without prepare; every picture is its own group.

    `more` has the columns that differ from those of `picture`.
    """
    labeled = [picture(f"{key.partition(':')[0]}:{path}", key) for path, key, _ in pictures]
    splits = [split for _, _, split in pictures]
    columns = manifest_columns(labeled, splits, groups or [path for path, _, _ in pictures])
    sources = {each.source: SourceNote(str(root)) for each in labeled}
    write_manifest(folder, columns | more, taxonomy, sources)
    return folder


def with_columns(manifest, folder, **columns):
    """Writes the pictures of a manifest with other columns, and returns the folder."""
    sources = {name: SourceNote(str(manifest.folder / note.root)) for name, note in manifest.sources.items()}
    write_manifest(folder, manifest.table.to_pydict() | columns, manifest.taxonomy, sources)
    return folder
