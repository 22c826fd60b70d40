"""Session fixtures: drawn pictures, their prepared data, a finished run and its bundle."""

import hashlib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from models.bundle import load_bundle
from tests.training.color_bundles import prepare_flowers
from tests.training.small import prepare_folder, run_training, write_pictures
from training import processes
from training.dataset.audit import examine
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
def one_worker_in_this_process():
    """A pool of one worker is a thread; to start a process takes longer than the few pictures of a test."""

    def pool(workers, **options):
        return ThreadPoolExecutor(1) if workers == 1 else ProcessPoolExecutor(workers, **options)

    with pytest.MonkeyPatch.context() as patched:
        for module in (examine, processes):
            patched.setattr(module, "ProcessPoolExecutor", pool)
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
def bundle(finished_run, data, manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles") / "tiny"
    shown = folder.with_name("shown.csv")
    columns = "path,scientific_name,author,license,source"
    shown.write_text(f"{columns}\n{manifest.path(0)},{manifest.taxonomy.taxa[0].scientific_name},Ada,CC0,a book\n")
    export(Export(checkpoint=finished_run / "last.pt", data=data, out=folder, note="Drawn.", examples=str(shown)))
    return load_bundle(folder)


@pytest.fixture(scope="session")
def other_data(pictures, tmp_path_factory):
    """The same pictures in another split, with calibration pictures, a corrected name, and no commercial use."""
    folder = tmp_path_factory.mktemp("other") / "data"
    prepare_folder(pictures, folder, license="CC BY-NC 4.0", calibration_share=0.2)
    taxa = folder / "taxa.json"
    taxa.write_text(taxa.read_text().replace('"Rosa rubra"', '"Rosa rubiginosa"'))
    return folder


@pytest.fixture(scope="session")
def other_bundle(finished_run, other_data, tmp_path_factory):
    """A bundle of other data, exported with flags that `bundle` lacks; its first plant is taken for its second."""
    flags = {"description": "Three drawn flowers.", "thresholds": ("genus=0.875",), "serve_px": 40, "examples": "2"}
    out = tmp_path_factory.mktemp("bundles") / "other"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("training.fit.networks.PARITY_PICTURES", 2)
        patched.setattr("training.fit.model.look_alikes", lambda *_: {0: (1,)})
        export(Export(checkpoint=finished_run / "last.pt", data=other_data, out=out, with_weights=True, **flags))
    return load_bundle(out)


@pytest.fixture(scope="session")
def things(tmp_path_factory):
    """24 pictures without a plant: noise in gray."""
    folder = tmp_path_factory.mktemp("things")
    for number in range(24):
        gray = np.random.default_rng(number).integers(0, 255, (48, 48), dtype=np.uint8)
        Image.fromarray(gray).save(folder / f"{number}.png")
    (folder / "cut.jpg").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="session")
def strangers(tmp_path_factory):
    """40 pictures of 20 genera that the network does not know: noise in green."""
    folder, lines = tmp_path_factory.mktemp("strangers"), ["path,scientific_name"]
    for number in range(40):
        noise = np.random.default_rng(number).integers(0, 255, (48, 48, 3), dtype=np.uint8)
        Image.fromarray(noise // np.array([3, 1, 3], np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,Genus{'abcdefghijklmnopqrst'[number % 20]} alba")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def rejecting(finished_run, data, things, strangers, tmp_path_factory):
    """A bundle in two precisions that was fitted on other things and on unknown plants too."""
    given = {"precision": ("fp16", "fp32"), "thresholds": ("family=0.75",)}
    out = tmp_path_factory.mktemp("bundles") / "rejecting"
    return export(
        Export(
            checkpoint=finished_run / "last.pt", data=data, out=out, negatives=(things,), unknown=(strangers,), **given
        )
    )


@pytest.fixture
def exporting(finished_run, data, tmp_path):
    return Export(checkpoint=finished_run / "last.pt", data=data, out=tmp_path / "parent" / "bundle")
