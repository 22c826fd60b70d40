import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.errors import DataError
from tests.make import cases
from tests.training.small import batches_of, write_things
from training.loading.augment import BatchMixer
from training.loading.negatives import NOT_A_PLANT, UNKNOWN_PLANT, list_negatives, num_plants
from training.loading.sampler import EpochBatches
from training.recipe import AugmentRecipe


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    return write_things(tmp_path_factory.mktemp("negatives") / "things", count=9)


def names(*folders, **options):
    return [path.name for path in list_negatives(folders, **options).paths]


def write_list(folder, *lines):
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")


def test_a_folder_is_read_with_the_folders_below_it(tmp_path):
    write_things(tmp_path / "cars", 2)
    write_things(tmp_path / "dogs" / "small", 1, first=5)
    write_things(tmp_path / ".cache", 1, first=7)
    (tmp_path / "README.md").write_text("what they are")
    assert names(tmp_path) == ["000.png", "001.png", "005.png"]
    assert list_negatives((tmp_path,)).num_broken == 0


def test_of_a_list_the_rows_to_fit_on_are_taken(tmp_path):
    write_things(tmp_path, 4)
    write_list(tmp_path, "path,split", "000.png,fit", "001.png,test", "002.png,train", "003.png,")
    assert names(tmp_path) == names(tmp_path / "labels.csv") == ["000.png", "002.png"]
    assert names(tmp_path, splits=("test",)) == ["001.png"]


def test_of_a_list_without_splits_all_rows_are_taken(tmp_path):
    write_things(tmp_path, 3)
    write_list(tmp_path, "what,path", "a dog,002.png", "a car,000.png")
    assert names(tmp_path) == ["002.png", "000.png"]


def test_broken_and_missing_pictures_are_left_out_and_counted(tmp_path):
    write_things(tmp_path, 2)
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    write_list(tmp_path, "path", "000.png", "broken.jpg", "missing.png", "001.png")
    found = list_negatives((tmp_path,))
    assert ([path.name for path in found.paths], found.num_broken) == (["000.png", "001.png"], 2)
    assert found.description == "2 pictures without a plant (2 files cannot be read)"


def test_a_picture_that_is_listed_twice_in_any_spelling_counts_once(tmp_path):
    write_things(tmp_path / "cars", 3)
    write_list(tmp_path / "cars", "path", "001.png", "001.png", "../cars/001.png", r"..\cars\001.png", "002.png")
    assert names(tmp_path / "cars", tmp_path / "cars" / "labels.csv") == ["001.png", "002.png"]
    assert list_negatives((tmp_path / "cars",)).num_broken == 0


def test_the_hash_is_that_of_the_list_wherever_the_folder_is(things, tmp_path):
    moved = shutil.copytree(things, tmp_path / "moved")
    assert list_negatives((things,)).sha256 == list_negatives((moved,)).sha256
    fewer = shutil.copytree(things, tmp_path / "fewer")
    (fewer / "003.png").unlink()
    assert list_negatives((things,)).sha256 != list_negatives((fewer,)).sha256
    assert list_negatives(()).sha256 == ""


@pytest.mark.parametrize(("folder", "lines", "problem"), cases(__file__, "lists_without_pictures"))
def test_what_gives_no_picture_is_one_clear_error(folder, lines, problem, tmp_path):
    write_list(write_things(tmp_path / "things", 1), *lines)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=problem):
        list_negatives((tmp_path / folder,))


def loaded(data, things, *flags, epoch=1, first_picture=0):
    return batches_of(data, "--negatives", things, *flags, epoch=epoch, first_picture=first_picture)


def test_negatives_follow_the_plants_of_each_batch_which_stay_the_same(data, things, monkeypatch):
    monkeypatch.setattr("training.loading.data.NEGATIVES_SHARE", 0.5)
    plain = batches_of(data, epoch=1)
    mixed = loaded(data, things)
    assert len(plain) == len(mixed)
    for (pixels, labels), (more_pixels, more_labels) in zip(plain, mixed, strict=True):
        assert num_plants(more_labels) == len(labels) == 4
        assert more_labels[4:].tolist() == [NOT_A_PLANT] * 2
        assert torch.equal(more_pixels[:4], pixels)
        assert torch.equal(more_labels[:4], labels)
        assert more_pixels.is_contiguous(memory_format=torch.channels_last)


def test_unknown_plants_stand_between_the_plants_and_the_negatives_which_stay_the_same(data, things, tmp_path):
    strangers = write_things(tmp_path / "strangers", count=3, first=50)
    without, with_unknown = (loaded(data, things, *flags) for flags in [(), ("--unknown", strangers)])
    for (pixels, labels), (more_pixels, more_labels) in zip(without, with_unknown, strict=True):
        assert more_labels.tolist() == [*labels[:4].tolist(), UNKNOWN_PLANT, NOT_A_PLANT]
        assert torch.equal(more_pixels[[0, 1, 2, 3, 5]], pixels)
    for path in strangers.iterdir():
        path.write_bytes(path.read_bytes()[:200])  # its header can be read
    with pytest.raises(DataError, match=r"none of the 3 pictures of an unknown plant can be read"):
        loaded(data, things, "--unknown", strangers)


def test_the_next_picture_takes_the_place_of_one_that_does_not_decode(data, things, tmp_path):
    folder = shutil.copytree(things, tmp_path / "things")
    for path in sorted(folder.iterdir())[1:]:
        path.write_bytes(path.read_bytes()[:200])
    batches = loaded(data, folder)
    assert all(labels[-1] == NOT_A_PLANT for _, labels in batches)
    (folder / "000.png").write_bytes((folder / "000.png").read_bytes()[:200])
    with pytest.raises(DataError, match="none of the 9 pictures without a plant"):
        loaded(data, folder)


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
@pytest.mark.parametrize(("plants", "unknown", "others"), cases(__file__, "mixed"))
def test_pictures_of_no_class_are_mixed_among_themselves_and_change_nothing_for_the_plants(
    plants, unknown, others, kind
):
    mix = BatchMixer(AugmentRecipe(**{kind: 1.0}), num_outputs=3, seed=0)
    pixels, labels = torch.rand(plants + unknown + others, 3, 8, 8), torch.arange(plants) % 3
    pixels[plants:] += 2  # brighter than any plant
    pixels[plants + unknown :] += 2
    num_mixed = 0
    for step in range(10):
        mixed, targets = mix(pixels, labels, step, unknown)
        alone, alone_targets = mix(pixels[:plants], labels, step)
        assert torch.equal(mixed[:plants], alone)
        assert torch.equal(targets, alone_targets)
        assert mixed.shape == pixels.shape
        of_unknown, of_things = mixed[plants:].split([unknown, others])
        assert ((of_unknown >= 1.99) & (of_unknown <= 3.01)).all()
        assert (of_things >= 3.99).all()
        num_mixed += not torch.equal(mixed[plants:], pixels[plants:])
    assert num_mixed >= (5 if unknown + others else 0)  # a cut of CutMix may have no area


@given(
    num_negatives=st.integers(1, 30),
    per_batch=st.integers(1, 5),
    num_ranks=st.integers(1, 3),
    epoch=st.integers(0, 3),
)
def test_in_an_epoch_all_negatives_take_turns_over_all_ranks(num_negatives, per_batch, num_ranks, epoch):
    chosen = Counter()
    for rank in range(num_ranks):
        batches = EpochBatches(
            np.arange(12 * num_ranks),
            2,
            seed=5,
            rank=rank,
            num_ranks=num_ranks,
            added=((num_negatives, per_batch), (7, 1)),
        )
        batches.epoch = epoch
        for indexes in batches:
            assert [index.row < 0 for index in indexes] == [False] * 2 + [True] * (1 + per_batch)
            assert -1 - indexes[2].row - num_negatives in range(7)
            chosen.update((index.row, index.repeat) for index in indexes[3:])
    assert set(chosen.values()) == {1}  # a repeat of a picture is augmented in its own way
    counts = Counter(row for row, _ in chosen)
    total = 6 * per_batch * num_ranks
    assert sum(counts.values()) == total
    assert all(total // num_negatives <= counts[-1 - n] <= -(-total // num_negatives) for n in range(num_negatives))
