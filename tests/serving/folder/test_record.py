"""run.json: machines that start at the same time agree on one run."""

import pytest

from models.errors import InputError
from serving.folder.output import OutputFolder
from serving.folder.results import BundleName, new_record, read_record, require_same, start_record, with_speed

BUNDLE = BundleName("tiny", "1", "0" * 64)


def test_machines_that_start_together_have_one_run(tmp_path):
    output = OutputFolder(tmp_path)
    first, second = (start_record(output, new_record(BUNDLE, {"k": 5})) for _ in range(2))
    assert first == second == read_record(output)


@pytest.mark.parametrize("other", [new_record(BUNDLE, {"k": 2}), new_record(BundleName("tiny", "2", "1"), {"k": 5})])
def test_machines_with_other_bundles_or_options_do_not_start_together(tmp_path, other):
    start_record(OutputFolder(tmp_path), new_record(BUNDLE, {"k": 5}))
    with pytest.raises(InputError, match="another run"):
        start_record(OutputFolder(tmp_path), other)


def test_a_damaged_record_is_one_error(tmp_path):
    (tmp_path / "run.json").write_bytes(b"{")
    with pytest.raises(InputError, match="cannot be read"):
        read_record(OutputFolder(tmp_path))


def test_only_what_differs_is_named_as_changed(tmp_path):
    start_record(OutputFolder(tmp_path), new_record(BUNDLE, {"k": 5, "taxa": (), "coverage": None}))
    former = read_record(OutputFolder(tmp_path))
    with pytest.raises(InputError, match=r"got changed: coverage \(null before\);"):
        require_same(former, new_record(BUNDLE, {"k": 5, "taxa": (), "coverage": 0.9}))


def test_speed_is_photographs_a_second_and_a_day():
    record = with_speed(new_record(BUNDLE, {}), num_photographs=30, seconds=60)
    assert (record.photographs_per_s, record.photographs_per_day) == (0.5, 43_200)
    assert with_speed(record, num_photographs=0, seconds=1) == record
