import argparse
import pickle
import socket
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from models.errors import CheckpointError
from models.network import PlantNetwork
from tests.make import http_server
from tests.training.small import RECIPE, are_equal, require_one_line, run_main, weights_of
from training.engine import weights
from training.engine.checkpoint import read_checkpoint
from training.engine.weights import load_weights, new_network
from training.recipe import NetworkRecipe, Recipe
from training.train import main

NAME = "test_efficientnet"


def under(prefix, state):
    return {f"{prefix}{name}": value for name, value in state.items()}


BESIDE = {"args": argparse.Namespace(out=Path("x")), "best": np.float64(0.3), "epoch": 3}
WRAPPED = {
    "timm": lambda state: {"state_dict": {}, "state_dict_ema": state, **BESIDE},
    "torchvision": lambda state: {"model": under("module.", state), **BESIDE},
    "tutorial": lambda state: {"model_state_dict": under("module._orig_mod.", state)},
    "Lightning": lambda state: {"state_dict": {**under("net.", state), "criterion.weight": torch.ones(7)}},
}


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
    elif kind in WRAPPED:
        torch.save(WRAPPED[kind](state), path)
    elif kind == "own names":
        torch.save({f"timm_model.{name}": value for name, value in state.items()}, path)
    else:
        torch.save(state, path)
    return str(path)


def test_none_leaves_a_new_network_with_its_drop_path_as_it_is():
    network = new_network(Recipe(network=NetworkRecipe(architecture="test_vit", dropout=0.5)), 3)
    before = weights_of(network)
    assert load_weights(network, "none") == "all weights start at random"
    assert are_equal(before, network)
    assert network.timm_model.blocks[-1].drop_path1.drop_prob == 0.25


@pytest.mark.parametrize("kind", ["plain", "own names", "safetensors", *WRAPPED])
def test_a_state_dict_fills_what_has_its_shape_says_so_and_is_refused_by_another_network(kind, tmp_path):
    state = timm_state(3)
    path = save(kind, state, tmp_path)
    for num_outputs in (3, 7):
        network = PlantNetwork(NAME, num_outputs)
        head = network.head.weight.clone()
        is_random = "the classifier starts at random" in load_weights(network, path)
        require_loaded(network, state, head=num_outputs == 3)
        assert is_random == torch.equal(network.head.weight, head) == (num_outputs == 7)
    network = PlantNetwork("test_resnet", 3)
    before = weights_of(network)
    with pytest.raises(CheckpointError, match=r"another network.*test_resnet"):
        load_weights(network, path)
    assert are_equal(before, network)


def test_a_checkpoint_of_ours_gives_its_moving_average(finished_run):
    network = PlantNetwork(NAME, 3)
    load_weights(network, str(finished_run / "last.pt"))
    assert are_equal(read_checkpoint(finished_run / "last.pt").ema, network)


def save_checkpoint(folder, keys, num_rows=None):
    """Writes a checkpoint of a run; only its weights and keys matter to these tests."""
    torch.manual_seed(2)
    network = PlantNetwork(NAME, len(keys) if num_rows is None else num_rows)
    torch.nn.init.normal_(network.head.bias)
    path = folder / "last.pt"
    torch.save({"network": network.state_dict(), "ema": None, "output_keys": keys}, path)
    return path, network


def load_by_key(path, keys):
    torch.manual_seed(3)
    network = PlantNetwork(NAME, len(keys))
    fresh = weights_of(network.head)
    return network, fresh, load_weights(network, str(path), keys)


@pytest.mark.parametrize("keys", [["c", "d", "a", "e"], ["c", "a", "b"], ["d", "a", "e"], ["x", "y", "z"]])
def test_the_rows_of_the_classifier_follow_their_keys(keys, tmp_path):
    path, saved = save_checkpoint(tmp_path, ["a", "b", "c"])
    network, fresh, note = load_by_key(path, keys)
    require_loaded(network, own_state(saved), head=False)
    for row, key in enumerate(keys):
        for name, value in network.head.state_dict().items():
            known = key in "abc"
            expected = saved.head.state_dict()[name]["abc".index(key)] if known else fresh[name][row]
            assert torch.equal(value[row], expected), (key, name)
    num_known = len(set(keys) & set("abc"))
    assert f"{num_known} of {len(keys)} rows of the classifier matched by key" in note
    assert ("the rest starts at random" in note) == (num_known < len(keys))


def test_a_plant_keeps_its_row_in_data_of_another_name(tmp_path):
    path, saved = save_checkpoint(tmp_path, ["garden:iris", "garden:rosa"])
    network, _, note = load_by_key(path, ["all:aster", "all:iris", "all:rosa"])
    assert torch.equal(network.head.weight[1:], saved.head.weight)
    assert "2 of 3 rows" in note


def test_weights_of_another_architecture_name_it(tmp_path):
    path, _ = save_checkpoint(tmp_path, ["a"])
    torch.save(torch.load(path, weights_only=True) | {"architecture": NAME}, path)
    with pytest.raises(CheckpointError, match=f"pass --architecture {NAME}"):
        load_weights(PlantNetwork("test_resnet", 1), str(path))


def test_a_checkpoint_whose_names_and_rows_disagree_is_refused(tmp_path):
    path, _ = save_checkpoint(tmp_path, ["a", "b", "c"], num_rows=5)
    with pytest.raises(CheckpointError, match="3 keys for 5 rows"):
        load_by_key(path, ["c", "a"])


def open_clip_state(width=48, patch_px=16, num_patches=196):
    """Weights of a visual transformer under OpenCLIP's names, as BioCLIP has them, with a part for texts."""
    norm = {"weight": (width,), "bias": (width,)}
    block = {f"{name}.{part}": shape for name in ("ln_1", "ln_2") for part, shape in norm.items()}
    block |= {"attn.in_proj_weight": (3 * width, width), "attn.in_proj_bias": (3 * width,)}
    block |= {"attn.out_proj.weight": (width, width), "attn.out_proj.bias": (width,)}
    block |= {"mlp.c_fc.weight": (4 * width, width), "mlp.c_fc.bias": (4 * width,)}
    block |= {"mlp.c_proj.weight": (width, 4 * width), "mlp.c_proj.bias": (width,)}
    shapes = {"class_embedding": (width,), "positional_embedding": (num_patches + 1, width), "proj": (width, 3)}
    shapes |= {"conv1.weight": (width, 3, patch_px, patch_px)}
    shapes |= {f"{name}.{part}": shape for name in ("ln_pre", "ln_post") for part, shape in norm.items()}
    shapes |= {f"transformer.resblocks.{place}.{name}": shape for place in (0, 1) for name, shape in block.items()}
    return {f"visual.{name}": torch.randn(shape) for name, shape in shapes.items()} | {"logit_scale": torch.ones(())}


def test_weights_of_open_clip_fill_the_backbone_of_its_network(monkeypatch, tmp_path):
    create = timm.create_model
    small = {"depth": 2, "embed_dim": 48, "num_heads": 3}
    monkeypatch.setattr(timm, "create_model", lambda name, **given: create(name, **(small | given)))
    network, state = PlantNetwork("vit_base_patch16_clip_224", 3), open_clip_state()
    head = network.head.weight.clone()
    note = load_weights(network, save("timm", state, tmp_path))
    loaded = own_state(network)
    assert torch.equal(loaded["patch_embed.proj.weight"], state["visual.conv1.weight"])
    assert torch.equal(loaded["pos_embed"][0], state["visual.positional_embedding"])
    assert torch.equal(loaded["blocks.1.attn.qkv.bias"], state["visual.transformer.resblocks.1.attn.in_proj_bias"])
    assert torch.equal(network.head.weight, head)  # though its projection has as many rows
    assert "the classifier starts at random" in note
    with pytest.raises(CheckpointError, match="another network"):
        load_weights(network, save("timm", {f"text.{name}": value for name, value in state.items()}, tmp_path))


def test_files_without_weights_are_an_error(tmp_path):
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
    note = load_weights(network, "imagenet")
    require_loaded(network, published.state_dict(), head=False)
    assert note == f"weights from timm's hub, {NAME}.r160_in1k; the classifier starts at random"


def hub_that_answers(status):
    def answer(request):
        request.send_response(status)
        request.end_headers()

    return http_server(answer)


@contextmanager
def hub_that_keeps_silent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def no_hub_at_all():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("hub", "reached"),
    [
        (lambda: hub_that_answers(200), True),
        (lambda: hub_that_answers(404), True),
        (lambda: hub_that_answers(503), False),
        (hub_that_keeps_silent, False),
        (no_hub_at_all, False),
    ],
)
def test_weights_are_fetched_only_if_the_hub_answers(hub, reached, monkeypatch):
    asked = []

    def create_model(name, *, pretrained):
        asked.append(not constants.HF_HUB_OFFLINE)
        return timm.models.create_model(name)

    monkeypatch.setattr(weights, "_HUB_TIMEOUT_S", 5.0 if reached else 0.2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    network = PlantNetwork(NAME, 3)
    monkeypatch.setattr(weights.timm, "create_model", create_model)
    with hub() as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        load_weights(network, "imagenet")
    assert asked == [reached]
    assert not constants.HF_HUB_OFFLINE


def test_weights_in_the_cache_need_no_hub(monkeypatch, tmp_path):
    published = timm_state(1000)
    cached = tmp_path / "hub" / f"models--timm--{NAME}.r160_in1k"
    (cached / "snapshots" / "1").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("1")
    save_file(published, cached / "snapshots" / "1" / "model.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    network = PlantNetwork(NAME, 3)
    with no_hub_at_all() as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        load_weights(network, "imagenet")
    require_loaded(network, published, head=False)


def test_imagenet_without_a_network_connection_is_one_line_with_both_remedies(data, tmp_path, capsys):
    arguments = (RECIPE, "--data", data, "--run", tmp_path / "run", "--weights", "imagenet")
    started = time.monotonic()
    code, stderr = run_main(main, capsys, *arguments)
    assert code == 1
    require_one_line(stderr, "bad_checkpoint")
    # The file and where it is, for whoever can reach the hub elsewhere.
    assert f"fetch {constants.ENDPOINT}/timm/{NAME}.r160_in1k/resolve/main/model.safetensors where" in stderr
    assert "--weights model.safetensors" in stderr
    assert "--weights none" in stderr
    assert time.monotonic() - started < 30
    assert not (tmp_path / "run").exists()
