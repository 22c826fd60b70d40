from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.session import NetworkOutput
from tests.models.open_files import open_files
from training.evaluation.stored_rows import ChosenRows, StoredRows, chunks, store_outputs


def stored(rows, folder=None, batch=3):
    found = StoredRows(folder)
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
    few = ChosenRows(found, chosen)
    assert few.shape == rows[chosen].shape
    assert np.array_equal(few[again], rows[chosen][again])


@given(st.integers(0, 3000), st.integers(0, 2**20))
def test_chunks_hold_every_row_once_and_stay_small(num_rows, width):
    parts = list(chunks(num_rows, width))
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(num_rows))
    assert all((part.stop - part.start) * width <= 2**18 or part.stop - part.start == 1 for part in parts)


def test_the_file_has_no_name_and_is_closed_with_its_rows(tmp_path):
    outputs = store_outputs([NetworkOutput(np.ones((2, 3), np.float32), np.ones((2, 4), np.float32))] * 2, tmp_path)
    assert (outputs.logits.shape, outputs.features.shape) == ((4, 3), (4, 4))
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
