"""Lists of photographs."""

import pytest

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


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"file,bed\na.jpg,1\n", "no column path"), (b"path,bed\n,1\n", "line 2"), (b"\xff\xfe\xff", "cannot be read")],
)
def test_wrong_lists_are_one_error(tmp_path, content, message):
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_list(tmp_path / "list", LocalFolder(tmp_path)))
