"""Two results of one study, side by side."""

import msgspec
import pytest

from models.errors import DataError
from tests.training.insight.studies.planted import MACHINE, written
from training.insight.studies.comparison import Compare, compare
from training.machine import Gpu


def test_two_results_stand_side_by_side(tmp_path):
    newer = msgspec.structs.replace(MACHINE, git_commit="fedcba9")
    one, other = written(tmp_path / "one"), written(tmp_path / "other", 150.0, newer, flags=("--workers", "2"))
    page = compare(Compare(one=one, other=other, out=tmp_path / "page.md"))
    assert "| amp | 100.0 [100.0 to 100.0] | 150.0 [150.0 to 150.0] | 1.50 | 80.0 [80.0 to 80.0] |" in page
    assert "* git_commit 0123456 and fedcba9" in page
    assert "* flags --workers 0 and --workers 2" in page
    assert (tmp_path / "page.md").read_text() == page


def test_an_arm_that_failed_in_one_result_is_compared_with_nothing(tmp_path):
    one, other = written(tmp_path / "one"), written(tmp_path / "other", error="error (x): lost")
    assert "| amp | 100.0 [100.0 to 100.0] | – | – |" in compare(Compare(one=one, other=other))


def test_results_of_different_machines_are_not_compared(tmp_path):
    other = msgspec.structs.replace(MACHINE, gpus=(Gpu("Other GPU", 24.0),))
    files = [written(tmp_path / str(n), machine=machine) for n, machine in enumerate((MACHINE, other))]
    with pytest.raises(DataError, match="gpus Drawn GPU 8 GB and Other GPU 24 GB"):
        compare(Compare(one=files[0], other=files[1]))


def test_results_of_different_studies_are_not_compared(tmp_path):
    files = [written(tmp_path / name, name=name) for name in ("optimizations", "batch_sizes")]
    with pytest.raises(DataError, match="only results of the same study"):
        compare(Compare(one=files[0], other=files[1]))
