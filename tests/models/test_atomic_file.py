import os
import stat

import pytest

from models.atomic_file import remove_leftovers, replace_together, replaced, write_bytes


def test_a_failing_block_leaves_the_old_file_unchanged(tmp_path):
    (tmp_path / "a.txt").write_text("old")

    def write_half():
        with replaced(tmp_path / "a.txt") as stream:
            stream.write(b"new")
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_half()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "old"}


def test_files_are_replaced_together(tmp_path):
    replace_together(tmp_path / "new folder", {"a": b"1", "b": b"2"})
    assert {path.name: path.read_bytes() for path in (tmp_path / "new folder").iterdir()} == {"a": b"1", "b": b"2"}


def test_no_file_is_replaced_if_the_last_cannot_be_written(tmp_path, monkeypatch):
    replace_together(tmp_path, {"a": b"1", "b": b"2"})
    num_synced = 0

    def full_disk(descriptor):
        nonlocal num_synced
        num_synced += 1
        if num_synced == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        replace_together(tmp_path, {"a": b"3", "b": b"4"})
    assert num_synced == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


@pytest.fixture
def synced(monkeypatch, tmp_path):
    """What was synchronized: inode, size (of a file only), and whether `a.txt` had its new content by then."""
    found, write_to_disk = [], os.fsync

    def fsync(descriptor):
        state = os.fstat(descriptor)
        size = state.st_size if stat.S_ISREG(state.st_mode) else None
        found.append((state.st_ino, size, (tmp_path / "a.txt").read_bytes() == b"new"))
        write_to_disk(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_content_is_on_the_disk_before_the_rename_and_the_rename_before_the_end(tmp_path, synced):
    (tmp_path / "a.txt").write_bytes(b"old")
    with replaced(tmp_path / "a.txt") as stream:
        stream.write(b"new")
    file, folder = ((tmp_path / name).stat().st_ino for name in ("a.txt", ""))
    assert synced == [(file, 3, False), (folder, None, True)]


def test_leftovers_of_killed_processes_are_removed_but_not_younger_files(tmp_path):
    old, young, other = (tmp_path / f".{name}.part" for name in ("a.txt.1", "a.txt.2", "b.txt.1"))
    for path in (old, young, other):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    (tmp_path / "a.txt").touch()
    write_bytes(tmp_path / "a.txt", b"new")
    assert set(tmp_path.iterdir()) == {tmp_path / "a.txt", young, other}
    remove_leftovers(tmp_path / "a.txt")
    assert set(tmp_path.iterdir()) == {tmp_path / "a.txt", other}


def test_writers_with_the_same_process_id_do_not_disturb_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with replaced(tmp_path / "a.txt") as first, replaced(tmp_path / "a.txt") as second:
        first.write(b"first")
        second.write(b"second")
    assert (tmp_path / "a.txt").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
