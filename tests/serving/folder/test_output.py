"""A file of the results is there completely or not at all, on a disk and in a bucket."""

import io
import uuid
from pathlib import Path

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from models.errors import DataError
from serving.folder.output import OutputFolder, open_output


@pytest.fixture(params=["folder", "bucket"])
def output(request, tmp_path):
    return open_output(str(tmp_path / "out") if request.param == "folder" else f"memory://{uuid.uuid4().hex}")


def test_files_are_written_and_replaced(output):
    assert output.read("parts/a") is None
    assert output.names("parts") == []
    output.write("parts/a", b"first")
    assert output.read("parts/a") == b"first"
    output.replace("parts/a", io.BytesIO(b"third"))
    assert output.read("parts/a") == b"third"
    assert output.names("parts") == ["a"]


def test_a_write_that_is_interrupted_leaves_nothing(tmp_path):
    class Interrupted(io.BytesIO):
        def read(self, *_):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        OutputFolder(tmp_path).replace("results.csv", Interrupted())
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    output = OutputFolder(tmp_path)
    output.write("part", b"old")

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        output.replace("part", io.BytesIO(b"new"))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_an_address_of_a_folder_is_a_folder(tmp_path):
    output = open_output(f"file://{tmp_path}/new/out")
    output.write("parts/a", b"first")
    assert (tmp_path / "new" / "out" / "parts" / "a").read_bytes() == b"first"


def test_an_address_that_is_written_in_place_is_refused(monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", AbstractFileSystem.pipe_file)
    with pytest.raises(DataError, match="cut file"):
        open_output("memory://out")


def test_a_run_that_ends_does_not_stop_another_one_that_writes(tmp_path, monkeypatch):
    """What the other one has begun to write looks as if it had been killed."""
    (tmp_path / ".mine.part").write_bytes(b"1")  # which no run has made
    replace = Path.replace
    interruptions = iter([True, True, False])

    def interrupted(*arguments):
        if next(interruptions, False):
            OutputFolder(tmp_path).remove_unfinished()
        return replace(*arguments)

    monkeypatch.setattr(Path, "replace", interrupted)
    OutputFolder(tmp_path).replace("results.csv", io.BytesIO(b"2"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {".mine.part": b"1", "results.csv": b"2"}
