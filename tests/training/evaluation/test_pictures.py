import threading
from unittest.mock import Mock

import numpy as np
import pytest
from msgspec.structs import replace

from models.cores import cores
from models.errors import DataError
from models.session import NetworkOutput
from tests.models.pictures import SPEC
from training.evaluation import pictures
from training.evaluation.pictures import run_side_by_side


class Echo:
    """A session whose logits are the first pixel; it notes the shape of each run and how many run at once."""

    def __init__(self):
        self.shapes, self.met = [], threading.Barrier(min(cores(), 2), timeout=60)

    def run(self, pixels):
        self.shapes.append(pixels.shape)
        self.met.wait()
        return NetworkOutput(pixels[:, 0, 0, :1], pixels[:, 0, 0, :2])


def test_every_picture_runs_alone_beside_others_and_keeps_its_place():
    batches = [np.random.default_rng(seed).normal(size=(8, 3, 4, 5)).astype(np.float32) for seed in range(3)]
    session = Echo()
    found = list(run_side_by_side(session, iter(batches)))
    assert set(session.shapes) == {(1, 3, 4, 5)}
    assert len(session.shapes) == 24
    for batch, outputs in zip(batches, found, strict=True):
        assert np.array_equal(outputs.logits, batch[:, 0, 0, :1])
        assert np.array_equal(outputs.features, batch[:, 0, 0, :2])


def test_the_network_file_gives_what_it_gives_with_all_threads(bundle):
    pixels = np.random.default_rng(0).normal(size=(5, 3, 32, 32)).astype(np.float32)
    (found,) = run_side_by_side(bundle.open_session("fp32", num_threads=1), [pixels])
    served = [bundle.open_session("fp32").run(picture[None]) for picture in pixels]
    assert np.array_equal(found.logits, np.concatenate([each.logits for each in served]))


def test_a_network_in_bfloat16_computes_so_and_on_all_cores(monkeypatch):
    session = Mock()
    monkeypatch.setattr(pictures, "OpenVinoSession", session)
    bundle = Mock()
    assert list(pictures.bundle_network(bundle, "bf16")([])) == []
    session.assert_called_once_with(bundle.network_path("bf16"), bf16=True, num_threads=1, num_runs=cores())


def test_of_files_that_cannot_be_read_there_are_no_outputs(manifest, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    files = pictures.PictureFiles((manifest.path(0), tmp_path / "broken.png", manifest.path(1)), SPEC, least=2)

    def means(batches):
        for batch in batches:
            yield NetworkOutput(batch.mean(axis=(2, 3)), batch[:, 0, 0])

    found = pictures.run(means, files, with_logits=False)
    assert (found.rows.tolist(), found.logits.shape, len(found.features)) == ([0, 2], (2, 0), 2)
    with pytest.raises(DataError, match="2 of 3"):
        pictures.run(means, replace(files, least=3))


def test_many_pictures_are_counted_on_standard_error_while_they_run(manifest, monkeypatch, capsys):
    monkeypatch.setattr(pictures, "BATCH_SIZE", 2)
    validation = pictures.pictures_of(manifest, "validation", SPEC, 0)
    assert len(list(validation.pixels([]))) == 2
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(pictures, "_FEW_PICTURES", 0)
    assert len(list(validation.pixels([]))) == 2
    written, shown = capsys.readouterr()
    assert written == ""
    assert "validation split" in shown
    assert "100%" in shown
