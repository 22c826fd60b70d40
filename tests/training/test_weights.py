import pickle
import sys
import time

import pytest
import timm
import torch
from safetensors.torch import save_file

from models.errors import CheckpointError
from models.network import PlantNetwork
from tests.training.small import RECIPE, require_one_line
from training import weights
from training.checkpoint import read_checkpoint
from training.train import main
from training.weights import load_weights

NAME = "test_efficientnet"


def timm_state(num_classes, seed=1):
    torch.manual_seed(seed)
    return timm.create_model(NAME, num_classes=num_classes).state_dict()


def own_state(network):
    """The network's weights under timm's names."""
    return {name.removeprefix("timm_model."): value for name, value in network.state_dict().items()}


def require_loaded(network, state, *, head=True):
    for name, value in own_state(network).items():
        if head or not name.startswith("classifier"):
            assert torch.equal(value, state[name]), name


def save(kind, state, folder):
    path = folder / ("weights.safetensors" if kind == "safetensors" else "weights.pth")
    if kind == "safetensors":
        save_file(state, path)
    elif kind == "wrapped":
        torch.save({"state_dict": state, "epoch": 3}, path)
    elif kind == "own names":
        torch.save({f"timm_model.{name}": value for name, value in state.items()}, path)
    else:
        torch.save(state, path)
    return str(path)


def test_none_leaves_the_network_as_it_is():
    network = PlantNetwork(NAME, 3)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    loaded = load_weights(network, "none")
    assert (loaded.origin, loaded.fresh_head) == ("none", True)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("kind", ["timm", "wrapped", "own names", "safetensors"])
def test_a_state_dict_fills_the_whole_network(kind, tmp_path):
    network, state = PlantNetwork(NAME, 3), timm_state(3)
    loaded = load_weights(network, save(kind, state, tmp_path))
    require_loaded(network, state)
    assert not loaded.fresh_head


@pytest.mark.parametrize("kind", ["timm", "safetensors"])
def test_weights_of_another_number_of_classes_fill_the_backbone_and_say_so(kind, tmp_path):
    network, state = PlantNetwork(NAME, 7), timm_state(3)
    head = network.head.weight.clone()
    loaded = load_weights(network, save(kind, state, tmp_path))
    require_loaded(network, state, head=False)
    assert torch.equal(network.head.weight, head)
    assert loaded.fresh_head
    assert "the classifier starts at random" in loaded.note


def test_a_checkpoint_of_ours_gives_its_moving_average(finished_run):
    network = PlantNetwork(NAME, 3)
    load_weights(network, str(finished_run / "last.pt"))
    ema = read_checkpoint(finished_run / "last.pt").ema
    assert all(torch.equal(value, ema[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("kind", ["timm", "safetensors"])
def test_weights_of_another_architecture_are_refused_and_change_nothing(kind, tmp_path):
    network = PlantNetwork("test_resnet", 3)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"another network.*test_resnet"):
        load_weights(network, save(kind, timm_state(3), tmp_path))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_files_that_hold_no_weights_are_told(tmp_path):
    contents = {
        "a.pth": pickle.dumps({"a": print}),
        "b.pth": b"garbage",
        "c.safetensors": b"\xff" * 100,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    torch.save({"epoch": 3}, tmp_path / "d.pth")
    for name in [*contents, "d.pth", "missing.pth", "missing.safetensors"]:
        with pytest.raises(CheckpointError, match=name):
            load_weights(PlantNetwork(NAME, 3), str(tmp_path / name))


def test_imagenet_fills_the_backbone_from_what_timm_gives(monkeypatch):
    torch.manual_seed(5)
    published = timm.create_model(NAME)

    def create_model(name, *, pretrained):
        assert (name, pretrained) == (NAME, True)
        return published

    network = PlantNetwork(NAME, 3)
    monkeypatch.setattr(weights.timm, "create_model", create_model)
    loaded = load_weights(network, "imagenet")
    require_loaded(network, published.state_dict(), head=False)
    assert (loaded.origin, loaded.fresh_head) == ("imagenet", True)


def test_imagenet_without_a_network_connection_is_one_line_with_both_ways_out(data, tmp_path, monkeypatch, capsys):
    arguments = (RECIPE, "--data", data, "--run", tmp_path / "run", "--weights", "imagenet")
    monkeypatch.setattr(sys, "argv", ["train.py", *map(str, arguments)])
    started = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 1
    require_one_line(told, "bad_checkpoint")
    assert "--weights FILE" in told
    assert "--weights none" in told
    assert time.monotonic() - started < 30
    assert not (tmp_path / "run").exists()
