import os
import pickle
import zipfile

import msgspec
import pytest
import torch
from msgspec.structs import replace

from models.errors import CheckpointError
from training.engine.checkpoint import (
    FORMAT,
    Checkpoint,
    CheckpointFolder,
    DamagedCheckpoint,
    load_tensors,
    read_checkpoint,
    write_checkpoint,
)

TINY = Checkpoint(
    architecture="test_efficientnet",
    network={"weight": torch.arange(6.0)},
    ema=None,
    optimizer={},
    scheduler={},
    scaler={},
    position={"epoch": 1, "pictures": 8, "step": 3, "best": 0.5},
    recipe={"name": "tiny"},
    output_keys=["s:rosa"],
    manifest_sha256="0" * 64,
    global_batch=4,
    git_commit="unknown",
    trained_on="CPU",
)


class Bomb:
    """Writes a file when it is unpickled without `weights_only`."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_checkpoint_reads_back_as_it_was_written(tmp_path):
    write_checkpoint(tmp_path / "run" / "last.pt", TINY)
    found = read_checkpoint(tmp_path / "run" / "last.pt")
    assert torch.equal(found.network["weight"], TINY.network["weight"])
    plain = [replace(checkpoint, network={}) for checkpoint in (found, TINY)]
    assert plain[0] == plain[1]


def test_a_failed_write_leaves_the_old_checkpoint_and_the_next_write_works(tmp_path, monkeypatch):
    path = tmp_path / "last.pt"
    write_checkpoint(path, TINY)

    def break_off(_content, stream):
        stream.write(b"half a file")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", break_off)
        with pytest.raises(OSError, match="No space left"):
            write_checkpoint(path, TINY)
    assert read_checkpoint(path).position["step"] == 3
    write_checkpoint(path, replace(TINY, position={**TINY.position, "step": 4}))
    assert read_checkpoint(path).position["step"] == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.pt"]


DAMAGES = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 20),
    "a pickle": lambda path: path.write_bytes(pickle.dumps({"format": 1})),
    "other content": lambda path: torch.save({"epoch": 3}, path),
    "a tensor": lambda path: torch.save(torch.zeros(3), path),
    "incomplete": lambda path: torch.save({"format": FORMAT, "architecture": "x"}, path),
    "from the future": lambda path: torch.save({**msgspec.structs.asdict(TINY), "format": FORMAT + 1}, path),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_one_clear_error(kind, tmp_path):
    path = tmp_path / "last.pt"
    write_checkpoint(path, TINY)
    DAMAGES[kind](path)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("epoch", "pictures", "expected"), [(0, 0, 0), (0, 4, 0), (1, 0, 0), (1, 4, 1), (15, 0, 14), (15, 8, 15)]
)
def test_the_last_epoch_is_the_one_whose_pictures_came_last(epoch, pictures, expected):
    position = {"epoch": epoch, "pictures": pictures}
    assert replace(TINY, position=position).last_epoch == expected


@pytest.mark.parametrize(("packed_from", "expected"), [("", "0" * 64), ("1" * 64, "1" * 64)])
def test_a_checkpoint_knows_the_manifest_before_packing(packed_from, expected, tmp_path):
    write_checkpoint(tmp_path / "last.pt", replace(TINY, packed_from=packed_from))
    assert read_checkpoint(tmp_path / "last.pt").trained_with == expected


def test_code_in_a_checkpoint_is_never_executed(tmp_path):
    bomb = Bomb(tmp_path / "executed")
    content = {**msgspec.structs.asdict(TINY), "position": bomb}
    torch.save(content, tmp_path / "new.pt")
    torch.save(content, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(bomb))
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:  # that torch did not write
        archive.writestr("archive/data.pkl", pickle.dumps(bomb))
        archive.writestr("archive/version", "3")
    for path in tmp_path.glob("*.pt"):
        with pytest.raises(CheckpointError, match=r"cannot be read|other things than tensors"):
            load_tensors(path)
    assert not (tmp_path / "executed").exists()


def checkpoint_of(step, value=0.0):
    weight = torch.full((1000,), float(step) + value)
    return replace(TINY, network={"weight": weight}, position={"step": step})


def flip_a_bit(path):
    """Changes one bit of the weights, as a failing disk does; the archive stays readable."""
    data = bytearray(path.read_bytes())
    where = data.index(torch.full((4,), read_checkpoint(path).network["weight"][0].item()).numpy().tobytes())
    data[where + 9] ^= 1
    path.unlink()  # the file may have a second hard link, whose content must not change
    path.write_bytes(data)


@pytest.fixture
def kept(tmp_path):
    """A folder in which five checkpoints were saved and three are kept; the second one is the best."""
    folder = CheckpointFolder(tmp_path, keep=3)
    for step in range(1, 6):
        folder.save(checkpoint_of(step), step, best=step == 2)
    return folder


def test_the_newest_few_and_the_best_are_kept(kept, tmp_path):
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best.pt", "last.pt", "step-000000003.pt", "step-000000004.pt", "step-000000005.pt"]
    assert read_checkpoint(tmp_path / "best.pt").position == {"step": 2}
    assert read_checkpoint(tmp_path / "last.pt").position == {"step": 5}


def test_one_changed_bit_is_detected(kept, tmp_path):
    flip_a_bit(tmp_path / "last.pt")
    with pytest.raises(DamagedCheckpoint, match="checksum"):
        read_checkpoint(tmp_path / "last.pt")


def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(kept, tmp_path):
    (tmp_path / "last.pt").unlink()
    (tmp_path / "step-000000005.pt").write_bytes(b"half a file")
    flip_a_bit(tmp_path / "step-000000004.pt")
    path, checkpoint, damaged = kept.newest()
    assert (path.name, checkpoint.position) == ("step-000000003.pt", {"step": 3})
    names = ("step-000000005.pt", "step-000000004.pt")
    assert [name in str(error) for name, error in zip(names, damaged, strict=True)] == [True, True]


def test_one_file_with_two_names_is_tried_once(kept, tmp_path):
    os.truncate(tmp_path / "last.pt", 100)  # it is step-000000005.pt, too
    path, _, damaged = kept.newest()
    assert path.name == "step-000000004.pt"
    assert len(damaged) == 1


def test_the_same_step_saved_twice_is_one_checkpoint(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    folder.save(checkpoint_of(7), 7)
    folder.save(checkpoint_of(7, value=0.5), 7, best=True)
    assert {path.name for path in tmp_path.iterdir()} == {"best.pt", "last.pt", "step-000000007.pt"}
    assert read_checkpoint(tmp_path / "last.pt").network["weight"][0] == 7.5


def test_a_disk_without_links_gets_copies(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(1, "no links here")

    monkeypatch.setattr("os.link", refuse)
    CheckpointFolder(tmp_path, keep=1).save(checkpoint_of(3), 3, best=True)
    assert all(read_checkpoint(tmp_path / name).position == {"step": 3} for name in ("last.pt", "best.pt"))


def test_a_run_that_starts_over_leaves_nothing_of_the_old_one(kept, tmp_path):
    (tmp_path / ".step-000000006.pt.abc.part").write_bytes(b"killed here")
    kept.clear()
    CheckpointFolder(tmp_path, clean=True)
    assert list(tmp_path.iterdir()) == []
    assert not kept.has_checkpoint
