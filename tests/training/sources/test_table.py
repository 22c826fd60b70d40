import pytest

from models.errors import DataError
from training.sources.table import read_table


def write(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


@pytest.mark.parametrize(
    ("written", "split"),
    [("train", "train"), ("Val", "validation"), ("valid", "validation"), ("TEST", "test"), ("", None)],
)
def test_splits_are_read_under_their_usual_names(written, split, tmp_path):
    table = write(tmp_path / "list.csv", f"path,scientific_name,split\na.jpg,Rosa canina,{written}\n")
    assert [record.split for record in read_table(table)] == [split]


def test_a_list_saved_by_a_spreadsheet_is_read(tmp_path):
    table = write(tmp_path / "list.csv", "path,scientific_name\r\na.jpg,  Rosa canina \r\n", encoding="utf-8-sig")
    (record,) = read_table(table)
    assert (record.path, record.original_name) == (tmp_path / "a.jpg", "Rosa canina")


def test_a_row_may_be_shorter_than_the_header(tmp_path):
    table = write(tmp_path / "list.csv", "path,scientific_name,author,licence\na.jpg,Rosa canina\n")
    (record,) = read_table(table, licence="CC0")
    assert (record.author, record.licence) == ("", "CC0")


def test_a_mistake_names_its_line(tmp_path):
    table = write(tmp_path / "list.csv", "path,scientific_name\na.jpg,Rosa canina\n,Rosa canina\n")
    with pytest.raises(DataError, match="line 3: path or scientific_name is empty"):
        list(read_table(table))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00p", b'path,scientific_name\n"' + b"x" * 200_000])
def test_bytes_that_are_no_csv_are_told(content, tmp_path):
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(DataError, match="no UTF-8 CSV"):
        list(read_table(tmp_path / "list.csv"))
