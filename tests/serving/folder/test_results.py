"""The files of the results: the record, on which machines agree, and rows that survive their files."""

import csv
import string

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.errors import InputError
from serving.folder.output import OutputFolder
from serving.folder.results import (
    BundleName,
    decode,
    encode,
    new_record,
    read_record,
    require_same,
    start_record,
    with_speed,
    write_table,
)
from serving.folder.rows import columns

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


SCHEMA = columns(1)
TEXT = st.text(string.ascii_letters + "äé×,\"'\n\r ;", min_size=1)
VALUES = {
    pa.string(): st.none() | TEXT,
    pa.int64(): st.none() | st.integers(-(2**40), 2**40),
    pa.float64(): st.none() | st.floats(allow_nan=False, allow_infinity=False),
    pa.list_(pa.string()): st.none() | st.lists(st.text(string.ascii_letters + " ", min_size=1), min_size=1),
}
ROWS = st.lists(st.fixed_dictionaries({field.name: VALUES[field.type] for field in SCHEMA}), max_size=3)


@given(rows=ROWS)
def test_what_is_written_is_read(rows):
    assert decode(encode(rows, SCHEMA)) == rows


def test_missing_columns_are_null():
    (row,) = decode(encode([{"path": "a.jpg"}], SCHEMA))
    assert row == dict.fromkeys(SCHEMA.names) | {"path": "a.jpg"}


def cell(value):
    return "" if value is None else "; ".join(value) if isinstance(value, list) else str(value)


@given(rows=ROWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_the_two_forms_of_the_table_hold_the_same_rows(rows, tmp_path):
    assert sum(write_table(OutputFolder(tmp_path), rows, SCHEMA).values()) == len(rows)
    assert pq.read_table(tmp_path / "results.parquet").to_pylist() == rows
    with (tmp_path / "results.csv").open(encoding="utf-8-sig", newline="") as stream:
        assert list(csv.reader(stream)) == [SCHEMA.names, *([cell(row[name]) for name in SCHEMA.names] for row in rows)]


def test_spreadsheets_read_the_table_as_utf_8(tmp_path):
    write_table(OutputFolder(tmp_path), [{"status": "ok", "verdict_name": "Rosa × alba"}], SCHEMA)
    content = (tmp_path / "results.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbfpath,")
    assert "Rosa × alba" in content.decode("utf-8-sig")


def test_a_table_that_cannot_be_written_leaves_the_former_one(tmp_path):
    def rows():
        yield {"status": "ok", "path": "new.jpg"}
        raise OSError("the part cannot be read")

    output = OutputFolder(tmp_path)
    write_table(output, [{"status": "ok", "path": "old.jpg"}], SCHEMA)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OSError, match="the part"):
        write_table(output, rows(), SCHEMA)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert before.keys() == {"results.csv", "results.parquet"}
