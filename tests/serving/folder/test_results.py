"""The files of the results: the record, on which machines agree, and rows that survive their files."""

import csv
import hashlib
import string
import uuid

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.errors import InputError
from serving.folder.output import OutputFolder, open_output
from serving.folder.photographs import Photograph
from serving.folder.plants import Plant
from serving.folder.results import (
    BundleName,
    PartFiles,
    keyed,
    new_record,
    read_record,
    with_speed,
    write_table,
)
from serving.folder.rows import columns

BUNDLE = BundleName("tiny", "1", "0" * 64)


def test_a_damaged_record_is_one_error(tmp_path):
    (tmp_path / "run.json").write_bytes(b"{")
    with pytest.raises(InputError, match="cannot be read"):
        read_record(OutputFolder(tmp_path), new_record(BUNDLE, {}))


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


def in_memory(schema=SCHEMA):
    return PartFiles(open_output(f"memory://{uuid.uuid4().hex}"), schema)


@given(rows=ROWS)
def test_what_is_written_is_read(rows):
    files, keys = in_memory(), [str(number) for number in range(len(rows))]
    rows = [row | {"num_failed": 0} for row in rows]
    files.write(dict.fromkeys(keys), rows)
    assert list(files.rows(keys, files.held())) == rows


def test_of_several_rows_of_a_plant_the_one_with_the_fewest_failures_counts():
    files, keys = in_memory(), [str(number) for number in range(8)]
    for key in keys:
        for part, num_failed in (([key], 1), ([key, "more"], 0)):  # whose names, and so their order, are hashes
            files.write(dict.fromkeys(part), [{"num_failed": num_failed}] * len(part))
    assert {row["num_failed"] for row in files.rows(keys, files.held())} == {0}


def test_a_key_is_of_what_is_asked_and_of_the_size_and_time_of_each_photograph():
    plant = Plant("", (Photograph("a.jpg", 1, "1"),))
    others = [Photograph("b.jpg", 1, "1"), Photograph("a.jpg", 2, "1"), Photograph("a.jpg", 1, "2")]
    others.append(Photograph("a.jpg", 1, "1", {"bed": "north"}))
    run = new_record(BUNDLE, {"k": 5})
    keys = {*keyed([plant, *(Plant("", (each,)) for each in others)], run)}
    for other in (new_record(BUNDLE, {"k": 2}), new_record(BundleName("tiny", "2", "1"), {"k": 5})):
        keys |= keyed([plant], other).keys()
    assert len(keys) == 7
    assert keyed([plant], new_record(BUNDLE, {"k": 5})) == keyed([plant], run)


@pytest.mark.parametrize("taxa", [[], ["Rosa"]])
def test_rows_of_a_choice_from_before_its_discarded_mass_counted_are_answered_again(taxa):
    plant = Plant("", (Photograph("a.jpg", 1, "1"),))
    options = {"k": 5, "taxa": taxa}
    former = msgspec.json.encode((BUNDLE, options)) + msgspec.json.encode(plant)
    former_key = hashlib.sha256(former).hexdigest()[:32]
    assert ([*keyed([plant], new_record(BUNDLE, options))] == [former_key]) == (not taxa)


def cell(value):
    return "" if value is None else "; ".join(value) if isinstance(value, list) else str(value)


@given(rows=ROWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_the_two_forms_of_the_table_hold_the_same_rows(rows, tmp_path):
    assert sum(write_table(OutputFolder(tmp_path), rows, SCHEMA).values()) == len(rows)
    assert pq.read_table(tmp_path / "results.parquet").to_pylist() == rows
    assert (tmp_path / "results.csv").read_bytes().startswith(b"\xef\xbb\xbf"), "Excel takes it for UTF-8"
    with (tmp_path / "results.csv").open(encoding="utf-8-sig", newline="") as stream:
        assert list(csv.reader(stream)) == [SCHEMA.names, *([cell(row[name]) for name in SCHEMA.names] for row in rows)]


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
