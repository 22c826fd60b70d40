"""Trains and exports a network of each family that `--architecture` is made for, with few layers and small pictures."""

import numpy as np
import pytest
import timm
import torch

from models.bundle import load_bundle
from models.network import PlantNetwork
from models.preprocess import picture_to_input
from tests.training.small import events, run_training
from training.engine.checkpoint import read_checkpoint
from training.export import Export, export

SMALL = {"depth": 2, "embed_dim": 48, "num_heads": 3}
FAMILIES = {  # options of timm that make it small, the sides of training and of the service, and mean and deviation
    "tf_efficientnetv2_b0": ({"channel_multiplier": 0.25}, (32, 48), 0.485, 0.229),
    "vit_small_patch16_224": (SMALL, (32, 48), 0.5, 0.5),
    "eva02_small_patch14_224": (SMALL, (42, 56), 0.48145466, 0.26862954),
    "vit_base_patch16_clip_224": (SMALL, (32, 48), 0.48145466, 0.26862954),  # the network of BioCLIP
}


@pytest.fixture(params=FAMILIES)
def family(request, monkeypatch):
    """An architecture, of which timm makes a small variant."""
    options, create = FAMILIES[request.param][0], timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, **given: create(name, **(options | given)))
    return request.param


def train_family(family, data, run):
    flags = ("--architecture", family, "--picture-px", 32, "--serve-px", 52, "--max-steps", 2)
    return run_training(data, run, *flags)


def test_a_network_of_each_family_takes_steps_with_its_own_input(family, data, tmp_path):
    checkpoint = read_checkpoint(train_family(family, data, tmp_path / "run") / "last.pt")
    _, (train_px, serve_px), mean, std = FAMILIES[family]
    pictures = checkpoint.recipe["pictures"]
    assert (pictures["mean"][0], pictures["std"][0], pictures["interpolation"]) == (mean, std, "bicubic")
    if family != "tf_efficientnetv2_b0":  # which takes 52 px as they are
        assert (pictures["picture_px"], pictures["serve_px"]) == (train_px, serve_px)
    assert len(events(tmp_path / "run", "losses")) == 2


@pytest.mark.slow
def test_a_network_of_each_family_is_exported_and_answers_as_in_torch(family, data, manifest, tmp_path):
    run = train_family(family, data, tmp_path / "run")
    export(Export(checkpoint=run / "last.pt", data=data, out=tmp_path / "bundle", precision=("fp32", "fp16")))
    bundle, checkpoint = load_bundle(tmp_path / "bundle"), read_checkpoint(run / "last.pt")
    assert (bundle.record.input.mean[0], bundle.record.input.std[0]) == FAMILIES[family][2:]
    network = PlantNetwork(family, 3).eval()
    network.load_state_dict(checkpoint.eval_weights)
    pixels, _ = picture_to_input(manifest.path(0).read_bytes(), bundle.record.input)
    with torch.inference_mode():
        expected = network(torch.from_numpy(pixels)[None]).numpy()
    found = bundle.open_session("fp32").run(pixels[None]).logits
    assert np.abs(found - expected).max() < 1e-3
    assert expected.std() > 1e-3
