import threading
from pathlib import Path
from unittest import mock
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from models.cores import cores
from models.errors import DataError
from models.outputs import chosen_rows
from models.session import NetworkOutput
from tests.models.open_files import open_files
from tests.models.pictures import SPEC
from tests.training.small import make_taxonomy, write_data
from training.dataset.manifest import Manifest
from training.fit import pictures
from training.fit.pictures import (
    PictureFiles,
    StoredRows,
    one_picture_each,
    plants_of,
    run,
    run_side_by_side,
)


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


def stored(rows, batch):
    found = StoredRows()
    for start in range(0, len(rows), batch):
        found.append(rows[start : start + batch])
    return found


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 9), st.data())
def test_rows_on_disk_read_as_rows_in_memory(num_rows, width, batch, data):
    rows = np.random.default_rng(num_rows).normal(size=(num_rows, width)).astype(np.float32)
    found = stored(rows, batch=batch)
    assert (found.shape, len(found)) == (rows.shape, num_rows)
    start, stop = (data.draw(st.integers(0, num_rows)) for _ in range(2))
    chosen = np.array(data.draw(st.lists(st.integers(0, num_rows - 1), min_size=1)), dtype=np.intp)
    again = np.array(data.draw(st.lists(st.integers(0, len(chosen) - 1), min_size=1)), dtype=np.intp)
    assert np.array_equal(found[start:stop], rows[start:stop])
    assert np.array_equal(found[chosen], rows[chosen])
    few = chosen_rows(found, chosen)
    assert few.shape == rows[chosen].shape
    assert np.array_equal(few[again], rows[chosen][again])


def test_the_file_has_no_name_and_is_closed_with_its_rows(tmp_path):
    batch = NetworkOutput(np.ones((2, 3), np.float32), np.ones((2, 4), np.float32))
    files = PictureFiles((), SPEC)
    for with_logits, width in ((False, 0), (True, 3)):
        outputs = run(lambda _: [batch] * 2, files, tmp_path, with_logits=with_logits)
        assert (outputs.logits.shape, outputs.features.shape) == ((4, width), (4, 4))
    assert list(tmp_path.iterdir()) == []
    assert len(open_files(tmp_path)) == 2
    del outputs
    assert open_files(tmp_path) == []


def test_a_full_disk_is_named_with_its_folder(tmp_path):
    rows = StoredRows(tmp_path)
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        mock.patch.object(rows, "_file", full),
        pytest.raises(OSError, match="No space left on device") as caught,
    ):
        rows.append(np.ones((1, 3), np.float32))
    assert caught.value.filename == str(tmp_path)


MANY_PLANTS = st.lists(st.integers(0, 8), min_size=1, max_size=40).map(np.array)


def test_pictures_of_one_group_show_one_plant(tmp_path):
    taxonomy = make_taxonomy(2)
    key = taxonomy.output_keys[0]
    pictures = [(f"{number}.jpg", key, "test") for number in range(4)]
    folder = write_data(tmp_path / "data", tmp_path, pictures, taxonomy, groups=["a", "b", "a", "c"])
    first, second, third = plants_of(Manifest(folder), np.array([0, 1, 2]))
    assert first == third != second
    assert sorted({first, second}) == [0, 1]


@given(MANY_PLANTS, st.integers(0, 3))
def test_one_picture_of_each_plant_is_drawn(plants, seed):
    chosen = one_picture_each(plants, seed)
    assert sorted(plants[chosen]) == sorted(set(plants.tolist()))
    assert (np.diff(chosen) > 0).all()
    assert (chosen == one_picture_each(plants, seed)).all()


def test_any_picture_of_a_plant_may_be_drawn():
    plants = np.zeros(3, dtype=np.int64)
    assert {int(one_picture_each(plants, seed)[0]) for seed in range(40)} == {0, 1, 2}
