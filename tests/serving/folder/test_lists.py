"""Lists of photographs."""

import csv
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.errors import DataError
from serving.folder.lists import read_list
from serving.folder.photographs import LocalFolder


@pytest.mark.parametrize("text", ["a.jpg\ngone.jpg\n", "\ufeffpath,bed\na.jpg,1\ngone.jpg,\n"])
def test_lists(tmp_path, text):
    (tmp_path / "a.jpg").write_bytes(b"1")
    (tmp_path / "list").write_text(text, encoding="utf-8")
    found = list(read_list(tmp_path / "list", LocalFolder(tmp_path)))
    assert [(each.path, each.num_bytes) for each in found] == [("a.jpg", 1), ("gone.jpg", -1)]
    assert found[0].columns == ({"bed": "1"} if "bed" in text else {})


def listed(tmp_path, text):
    (tmp_path / "list").write_bytes(text.encode())
    return [(each.path, dict(each.columns)) for each in read_list(tmp_path / "list", LocalFolder(tmp_path))]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("IMG 1, rose.jpg\r\nb.jpg\r\n\r\n", ["IMG 1, rose.jpg", "b.jpg"]),
        ("a\x0cb.jpg\nc\u2028d.jpg\ne\x85f.jpg", ["a\x0cb.jpg", "c\u2028d.jpg", "e\x85f.jpg"]),
        ('"a.jpg\n', ['"a.jpg']),
        ("", []),
    ],
)
def test_a_text_file_has_one_path_a_line(tmp_path, text, paths):
    assert listed(tmp_path, text) == [(path, {}) for path in paths]


def test_cells_of_a_table_may_have_commas_and_lines(tmp_path):
    text = 'path,note\r\n"IMG 1, rose.jpg","two\nlines\u2028"\r\nb.jpg\r\n'
    assert listed(tmp_path, text) == [("IMG 1, rose.jpg", {"note": "two\nlines\u2028"}), ("b.jpg", {"note": ""})]


CELLS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
ROWS = st.lists(st.tuples(CELLS.filter(bool), CELLS), unique_by=lambda row: row[0], max_size=5)


@given(ROWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_table_that_csv_writes_is_read(tmp_path, rows):
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([("path", "note"), *rows])
    assert listed(tmp_path, stream.getvalue()) == [(path, {"note": note}) for path, note in rows]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"file,bed\na.jpg,1\n", "no column path"),
        (b"path;species\na.jpg;rose\n", "no column path .*: separate the columns by commas"),
        (b"species\tpath\nrose\ta.jpg\n", "no column path .*: separate the columns by commas"),
        (b"path,bed\n,1\n", "line 2 of .* names no file"),
        (b"path\na.jpg\nIMG 1, rose.jpg\n", "line 3 of .* more cells"),
        (b'path,bed\na.jpg,"1\nb.jpg,2\n', "no CSV"),
        (b"path\n" + b"a" * 200_000 + b"\n", "line 2 of .* is no CSV"),
        (b'path,bed\na.jpg,"1"2\n', "line 2 of .* is no CSV"),
        (b"path\na\0.jpg\n", "zero bytes"),
        (b"path,bed\na.jpg,1\na.jpg,2\n", "line 3 of .* again .*a.jpg"),
        (b"a.jpg\nb.jpg\n\na.jpg\n", "line 4 of .* again .*a.jpg"),
        (b"\xff\xfe\xff", "cannot be read"),
    ],
)
def test_wrong_lists_are_one_error(tmp_path, content, message):
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_list(tmp_path / "list", LocalFolder(tmp_path)))
