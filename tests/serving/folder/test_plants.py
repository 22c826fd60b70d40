"""Lists of photographs, and which of these show one plant."""

import csv
import io
import uuid

import fsspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.errors import BotanifyError, DataError
from serving.folder.photographs import LocalFolder, Photograph, open_store
from serving.folder.plants import group_photographs, read_list


def write(folder, text):
    """Writes a list; returns its path."""
    (folder / "list").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "list"


def listed(folder, text, store=None):
    """The paths and columns of a list in the folder of its photographs."""
    return [(each.path, dict(each.columns)) for each in read_list(write(folder, text), store or LocalFolder(folder))]


@pytest.mark.parametrize("text", ["a.jpg\ngone.jpg\n", "\ufeffpath,bed\na.jpg,1\ngone.jpg,\n"])
def test_lists(tmp_path, text):
    (tmp_path / "a.jpg").write_bytes(b"1")
    (tmp_path / "list").write_text(text, encoding="utf-8")
    found = list(read_list(tmp_path / "list", LocalFolder(tmp_path)))
    assert [(each.path, each.num_bytes) for each in found] == [("a.jpg", 1), ("gone.jpg", -1)]
    assert found[0].columns == ({"bed": "1"} if "bed" in text else {})


def test_a_path_in_the_list_may_be_absolute_if_it_is_in_the_folder(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"1")
    assert listed(tmp_path, f"{tmp_path}/a.jpg\n") == [(f"{tmp_path}/a.jpg", {})]
    with pytest.raises(DataError, match=r"line 2 of .* again"):
        listed(tmp_path, f"{tmp_path}/a.jpg\na.jpg\n")


NFC, NFD = "K\u00fcche/\u00e9.jpg", "Ku\u0308che/e\u0301.jpg"


@pytest.mark.parametrize(
    ("there", "written"),
    [(NFC, NFD), (NFD, NFC), (NFC, NFC), (NFD, NFD), ("deep/a.jpg", r"deep\a.jpg"), (NFD, NFC.replace("/", "\\"))],
)
def test_a_path_is_found_in_the_spelling_of_another_system(tmp_path, there, written):
    (tmp_path / there).parent.mkdir()
    (tmp_path / there).write_bytes(b"1")
    bucket = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe_file(f"{bucket}/{there}", b"1")
    for store in (LocalFolder(tmp_path), open_store(bucket)):
        assert listed(tmp_path, f"{written}\n", store) == [(there, {})]
        with pytest.raises(DataError, match=r"line 2 of .* again"):
            listed(tmp_path, f"{written}\n./{there}\n", store)


def test_a_file_in_the_spelling_of_the_list_comes_first(tmp_path):
    (tmp_path / r"deep\a.jpg").write_bytes(b"1")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jpg").write_bytes(b"1")
    assert listed(tmp_path, "deep\\a.jpg\ndeep/a.jpg\n") == [("deep\\a.jpg", {}), ("deep/a.jpg", {})]


def test_backslashes_lead_out_of_no_folder(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "secret.jpg").write_bytes(b"1")
    (found,) = read_list(write(tmp_path, "..\\secret.jpg\n"), LocalFolder(tmp_path / "photos"))
    assert found.num_bytes == -1


def test_columns_without_a_name_are_left_out(tmp_path):
    assert listed(tmp_path, "path,bed,,\na.jpg,1,,\n") == [("a.jpg", {"bed": "1"})]


def test_a_list_leads_out_of_no_bucket(tmp_path):
    for name in ("../a.jpg", "/a.jpg"):
        with pytest.raises(DataError, match="outside the folder"):
            listed(tmp_path, name, open_store("memory://garden"))


def test_a_link_to_a_folder_leads_out_of_no_folder_and_to_no_file_twice(tmp_path):
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.jpg").write_bytes(b"1")
    links = {"out": tmp_path / "other", "in": tmp_path / "photos" / "deep", "a.jpg": tmp_path / "other" / "a.jpg"}
    for name, target in links.items():
        (tmp_path / "photos" / name).symlink_to(target)
    (tmp_path / "root").symlink_to("photos")
    assert listed(tmp_path / "root", f"a.jpg\nin/b.jpg\n{tmp_path}/photos/c.jpg\n")[:2] == [
        ("a.jpg", {}),
        ("in/b.jpg", {}),
    ]
    for text, message in (("out/a.jpg\n", "outside the folder"), ("deep/b.jpg\nin/b.jpg\n", "again")):
        with pytest.raises(DataError, match=message):
            listed(tmp_path / "root", text)


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


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_of_a_table_is_that_which_finds_the_path(tmp_path, separator):
    text = f'path{separator}"a; b,\nc|d"\n"IMG{separator} 1.jpg"{separator}" n "\n'
    assert listed(tmp_path, text) == [(f"IMG{separator} 1.jpg", {"a; b,\nc|d": " n "})]


CELLS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
PATHS = CELLS.map(lambda text: f"{text.replace('/', '')}.jpg")
ROWS = st.lists(st.tuples(PATHS, CELLS), unique_by=lambda row: row[0], max_size=5)


@given(ROWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_table_that_csv_writes_is_read(tmp_path, rows):
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([("path", "note"), *rows])
    assert listed(tmp_path, stream.getvalue()) == [(path, {"note": note}) for path, note in rows]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"file,bed\na.jpg,1\n", "lacks the column path"),
        (b"path,bed\n,1\n", "line 2 of .* names no file"),
        (b"path\na.jpg\nIMG 1, rose.jpg\n", "line 3 of .* more cells"),
        (b'path,bed\na.jpg,"1\nb.jpg,2\n', "no CSV"),
        (b"path\n" + b"a" * 200_000 + b"\n", "line 2 of .* is no CSV"),
        (b'path,bed\na.jpg,"1"2\n', "line 2 of .* is no CSV"),
        (b"path\na\0.jpg\n", "line 2 of .* NUL"),
        (b"a\0.jpg\n", "line 1 of .* NUL"),
        (b"path,bed\na.jpg,1\na.jpg,2\n", "line 3 of .* again .*a.jpg"),
        (b"a.jpg\nb.jpg\n\na.jpg\n", "line 4 of .* again .*a.jpg"),
        (b"path,bed\na.jpg,1\n./a.jpg,2\n", r"line 3 of .* again .*\./a.jpg"),
        (b"a.jpg\nb/../a.jpg\n", "line 2 of .* again"),
        (b"path\n../a.jpg\n", r"line 2 of .* outside the folder .*\.\./a.jpg"),
        (b"b/../../a.jpg\n", "line 1 of .* outside the folder"),
        (b"/etc/a.jpg\n", "line 1 of .* outside the folder"),
        (b"path,bed,path\na.jpg,1,b.jpg\n", "has a column twice .*path"),
        (b"path,bed,bed\na.jpg,1,2\n", "has a column twice .*bed"),
        (b"\xff\xfe\xff", "cannot be read"),
    ],
)
def test_wrong_lists_are_one_error(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        listed(tmp_path, content)


def photograph(path, **columns):
    return Photograph(path, 1, "1", columns)


PHOTOGRAPHS = [photograph("a/1_x.jpg", bed="n"), photograph("b/2_x.jpg", bed="s"), photograph("a/1_y.jpg", bed="s")]


@pytest.mark.parametrize(
    ("rule", "groups"),
    [
        (None, {"a/1_x.jpg": 1, "b/2_x.jpg": 1, "a/1_y.jpg": 1}),
        ("folder", {"a": 2, "b": 1}),
        ("column:bed", {"n": 1, "s": 2}),
        (r"regex:(\d)_", {"1": 2, "2": 1}),
        (r"regex:\d_", {"1_": 2, "2_": 1}),
    ],
)
def test_rules(rule, groups):
    plants = group_photographs(PHOTOGRAPHS, rule)
    assert {plant.name: len(plant.photographs) for plant in plants} == groups
    assert [plant.name for plant in plants] == list(groups)


@pytest.mark.parametrize(
    "rule", ["folders", "column:", "regex:", "regex:(", "regex:z", "regex:x*", r"regex:([ab]?)\d_", "column:tree"]
)
def test_wrong_rules_are_one_error(rule):
    with pytest.raises(BotanifyError):
        group_photographs(PHOTOGRAPHS, rule)
