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
from tests.make import cases


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


@pytest.mark.parametrize(("there", "written"), cases(__file__, "spellings"))
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


@pytest.mark.parametrize(("text", "paths"), cases(__file__, "text_files"))
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


LONG = "path\n" + "a" * 200_000, "line 2 of .* is no CSV"


@pytest.mark.parametrize(("content", "message"), [*cases(__file__, "wrong_lists"), LONG])
def test_wrong_lists_are_one_error(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        listed(tmp_path, content.encode("latin-1"))


def photograph(path, **columns):
    return Photograph(path, 1, "1", columns)


PHOTOGRAPHS = [photograph("a/1_x.jpg", bed="n"), photograph("b/2_x.jpg", bed="s"), photograph("a/1_y.jpg", bed="s")]


@pytest.mark.parametrize(("rule", "groups"), cases(__file__, "groups"))
def test_rules(rule, groups):
    plants = group_photographs(PHOTOGRAPHS, rule)
    assert {plant.name: len(plant.photographs) for plant in plants} == groups
    assert [plant.name for plant in plants] == list(groups)


@pytest.mark.parametrize("rule", cases(__file__, "wrong_groups"))
def test_wrong_rules_are_one_error(rule):
    with pytest.raises(BotanifyError):
        group_photographs(PHOTOGRAPHS, rule)
