"""Rows survive every format."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.folder.rows import columns
from serving.folder.tables import decode, encode

KINDS = columns(1)
TEXT = st.text(string.ascii_letters + "äé,\"'\n ", min_size=1)
VALUES = {
    str: st.none() | TEXT,
    int: st.none() | st.integers(-(2**40), 2**40),
    float: st.none() | st.floats(allow_nan=False, allow_infinity=False),
    list: st.none() | st.lists(st.text(string.ascii_letters + " ", min_size=1), min_size=1),
}
ROWS = st.lists(st.fixed_dictionaries({name: VALUES[kind] for name, kind in KINDS.items()}), max_size=3)


@pytest.mark.parametrize("table_format", ["parquet", "csv", "jsonl"])
@given(rows=ROWS)
def test_what_is_written_is_read(table_format, rows):
    assert decode(encode(rows, KINDS, table_format), KINDS, table_format) == rows


@pytest.mark.parametrize("table_format", ["parquet", "csv", "jsonl"])
def test_missing_columns_are_null(table_format):
    (row,) = decode(encode([{"path": "a.jpg"}], KINDS, table_format), KINDS, table_format)
    assert row == dict.fromkeys(KINDS) | {"path": "a.jpg"}
