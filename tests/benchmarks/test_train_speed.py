import json
import subprocess
import sys

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader

from benchmarks import train_speed_turns
from benchmarks.train_speed import Result, TrainSpeed, measure
from benchmarks.train_speed_arms import StoredPictures, open_arm, write_folder
from benchmarks.train_speed_turns import order_of, take_turns
from models.errors import RecipeError
from tests.training.small import make_taxonomy, write_data, write_pictures
from training.dataset.manifest import Manifest
from training.loading.storage import PictureStore

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # timm leaves them to the collector
CPU = torch.device("cpu")
TINY = {"architecture": "test_efficientnet", "num_outputs": 3, "picture_px": 32, "batch_size": 4, "amp": "off"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root, taxonomy = tmp_path_factory.mktemp("drawn"), make_taxonomy(3)
    flowers = zip(sorted(write_pictures(root / "flowers", per_class=3).iterdir()), taxonomy.output_keys, strict=True)
    places = [(path, key) for folder, key in flowers for path in sorted(folder.iterdir())]
    listed = [(str(path.relative_to(root)), key, "train") for path, key in places]
    return write_data(root / "data", root, listed, taxonomy)


def tiny(**changes):
    return TrainSpeed(**(TINY | {"device": "cpu", "rounds": 2, "steps": 2, "workers": 0} | changes))


def weights_after(name, steps, recipe):
    arm = open_arm(name, recipe, 3, CPU)
    network = arm._model if name == "timm" else arm._engine.network
    before = [value.clone() for value in network.parameters()]
    arm.take(steps)
    return before, list(network.parameters())


@pytest.mark.parametrize("name", ["ours", "timm"])
def test_a_loop_really_trains(name):
    before, after = weights_after(name, 2, tiny().recipe)
    assert sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) > 0.9 * len(before)
    assert all(bool(value.isfinite().all()) for value in after)


def test_both_loops_train_the_same_network_by_the_same_rules():
    recipe = tiny().recipe
    ours, timm = open_arm("ours", recipe, 3, CPU), open_arm("timm", recipe, 3, CPU)
    network = ours._engine.network.timm_model
    assert network.state_dict().keys() == timm._model.state_dict().keys()
    assert type(ours._engine.optimizer) is type(timm._optimizer) is torch.optim.AdamW
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(ours._engine.loss(logits, labels), timm._loss(logits, labels))
    for loop in (network, timm._model):
        assert loop.training
        assert loop.conv_stem.weight.is_contiguous(memory_format=torch.channels_last)


def test_both_loops_read_the_same_bytes(data, tmp_path):
    manifest = Manifest(data)
    store, rows = PictureStore(manifest), manifest.rows_of("train").tolist()
    write_folder(StoredPictures(data, tmp_path, times=3))
    written = sorted(path.read_bytes() for path in tmp_path.rglob("*.jpg"))
    assert written == sorted(store.read_many(rows) * 3)
    assert len(rows) == 9
    assert len(list((tmp_path / "train").iterdir())) == len({manifest.label(row) for row in rows})


@pytest.mark.parametrize("name", ["ours-data", "timm-data"])
def test_no_epoch_of_stored_pictures_ends_during_a_measurement(name, data, monkeypatch):
    begun, begin = [], DataLoader.__iter__
    monkeypatch.setattr(DataLoader, "__iter__", lambda loader: begun.append(loader) or begin(loader))
    measure(tiny(arms=(name,), data=data, steps=4))  # 18 steps of 4; there are 9 pictures
    assert len(begun) == 1


@pytest.mark.parametrize("number", [2, 3, 4, 8])
def test_the_order_of_the_loops_changes_from_round_to_round(number):
    names = [str(name) for name in range(number)]
    turns = [name for round_ in range(6) for name in order_of(round_, names)]
    before = {name: {turns[at - 1] for at in range(1, len(turns)) if turns[at] == name} for name in names}
    assert min(len(followed) for followed in before.values()) > 1
    assert turns == [name for round_ in range(6) for name in order_of(round_, names)]


class Loop:
    """Notes what it is asked to do."""

    def __init__(self, name, asked):
        self.name, self.asked = name, asked

    def take(self, steps):
        self.asked.append((self.name, steps))


def test_each_turn_has_a_lead_in_and_the_first_round_is_not_counted(monkeypatch):
    monkeypatch.setattr(train_speed_turns, "_MOST_WAIT_S", 0.0)
    asked = []
    arms = {"a": Loop("a", asked), "b": Loop("b", asked)}
    taken = take_turns(arms, {"a": 2, "b": 7}, rounds=range(4), steps=5, device=CPU)
    assert {name: len(turn.seconds) for name, turn in taken.items()} == {"a": 3, "b": 3}
    assert sorted(asked) == sorted(4 * [("a", 2), ("a", 5), ("b", 7), ("b", 5)])
    assert all(asked[at][0] == asked[at + 1][0] for at in range(0, len(asked), 2))


@pytest.mark.slow
def test_a_run_compares_the_loops_in_turns_and_writes_the_result(data, tmp_path, capsys):
    out = tmp_path / "new" / "train_speed.json"
    measure(tiny(arms=("ours", "timm", "ours-data", "timm-data"), data=data, out=out))
    written = msgspec.json.decode(out.read_bytes(), type=Result)
    assert [rate.arm for rate in written.rates] == ["ours", "timm", "ours-data", "timm-data"]
    assert all(len(rate.per_s) == 2 and min(rate.per_s) > 0 and rate.warmup_s > 0 for rate in written.rates)
    assert written.num_pictures == len(Manifest(data).rows_of("train"))
    assert {"processor", "git_commit"} <= set(json.loads(out.read_text())["machine"])
    assert "| ours-data |" in capsys.readouterr().out


def test_a_loop_of_stored_pictures_needs_data():
    with pytest.raises(RecipeError, match="--data"):
        measure(tiny(arms=("ours-data",)))


class Waiting:
    """A loop that must not begin before a file is there."""

    def __init__(self, file):
        self.file = file

    def take(self, steps):
        assert self.file.exists()


@pytest.mark.slow
def test_no_turn_starts_while_loaders_of_another_loop_are_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(train_speed_turns, "_POLL_S", 1.0)  # a busy machine gives a process nothing for a moment
    filled, program = tmp_path / "filled", tmp_path / "loader.py"
    program.write_text(
        "import pathlib, sys, time\n"
        "print('begun', flush=True)\n"
        "while time.process_time() < 1.5:\n    pass\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, program, filled], stdout=subprocess.PIPE) as loader:
        loader.stdout.readline()
        try:
            take_turns({"a": Waiting(filled)}, {"a": 1}, rounds=range(1), steps=1, device=CPU)
        finally:
            loader.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)  # two compilations
def test_the_compiled_loops_run(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # another's interrupted compilation is not ours
    measure(tiny(arms=("ours-compiled", "timm-compiled"), rounds=1))
    assert "| ours-compiled |" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_the_bandwidth_is_measured_and_both_loops_scale_their_loss():
    found = measure(TrainSpeed(picture_px=64, batch_size=8, rounds=1, steps=3, arms=("ours", "timm")))
    assert found.copy_gb_per_s > 10
    assert all(0 < rate.roofline < 1 for rate in found.rates)
