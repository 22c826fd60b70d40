import os

import pytest
import torch

from models.errors import CheckpointError
from training.engine.checkpoint import Checkpoint, CheckpointFolder, DamagedCheckpoint, read_checkpoint


def checkpoint_of(step, value=0.0):
    return Checkpoint(
        architecture="test_efficientnet",
        network={"weight": torch.full((1000,), float(step) + value)},
        ema=None,
        optimizer={},
        scheduler={},
        scaler={},
        position={"step": step},
        recipe={},
        output_keys=["drawn:a"],
        manifest_sha256="0" * 64,
        global_batch=4,
        git_commit="unknown",
        trained_on="CPU",
    )


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


def test_a_run_resumes_from_the_newest_checkpoint(kept, tmp_path):
    path, checkpoint, damaged = kept.newest()
    assert (path.name, checkpoint.position, damaged) == ("step-000000005.pt", {"step": 5}, [])


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


def test_if_every_checkpoint_is_damaged_the_error_names_the_newest(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    folder.save(checkpoint_of(1), 1)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be read"):
        folder.newest()


def test_an_empty_folder_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(CheckpointError, match=r"no such checkpoint.*without --resume"):
        CheckpointFolder(tmp_path, keep=3).newest()


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
    kept.clear_leftovers()
    assert list(tmp_path.iterdir()) == []
    assert not kept.has_checkpoint
