"""Session fixtures: drawn pictures, their prepared data, a finished run and its bundle."""

import hashlib

import pytest
import torch

from models.bundle import load_bundle
from tests.training.color_bundles import prepare_flowers
from tests.training.small import prepare_folder, run_training, write_pictures
from training.dataset.manifest import Manifest
from training.export import Export, export


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """With one thread, losses do not depend on the number of cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path):
    """No test downloads weights or finds them in the user's cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture(autouse=True, scope="session")
def no_tensorboard():
    """Runs write no event files, which take a second each."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("training.monitor.log.find_spec", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def loading_in_this_process():
    """An export loads its pictures in this process; to start others takes longer than three pictures."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("training.export.WORKERS", 0)
        yield


@pytest.fixture(autouse=True, scope="session")
def converted_once():
    """PyTorch converts equal networks to ONNX once: a conversion takes seconds, and most exports have the same one."""
    convert, programs = torch.onnx.export, {}

    def remembered(network, arguments, **options):
        weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in network.state_dict().values()))
        key = (repr(network), repr([value.shape for value in arguments]), repr(options), weights.digest())
        if key not in programs:
            programs[key] = convert(network, arguments, **options)
        return programs[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.onnx, "export", remembered)
        yield


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("drawn") / "flowers")


@pytest.fixture(scope="session")
def data(pictures, tmp_path_factory):
    """Prepared data: 36 pictures, of which 3 are for validation and 3 for the test."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    prepare_folder(pictures, folder)
    return folder


@pytest.fixture(scope="session")
def flowers(tmp_path_factory):
    """Prepared data of 60 drawn flowers, of which 30 are for the test."""
    return prepare_flowers(tmp_path_factory.mktemp("flowers"))


@pytest.fixture(scope="session")
def manifest(data):
    return Manifest(data)


@pytest.fixture(scope="session")
def finished_run(data, tmp_path_factory):
    """A complete run of two epochs; tests must not write to it."""
    return run_training(data, tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture(scope="session")
def bundle(finished_run, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles") / "tiny"
    export(Export(checkpoint=finished_run / "last.pt", data=data, out=folder, note="Drawn."))
    return load_bundle(folder)


@pytest.fixture
def exporting(finished_run, data, tmp_path):
    return Export(checkpoint=finished_run / "last.pt", data=data, out=tmp_path / "parent" / "bundle")
