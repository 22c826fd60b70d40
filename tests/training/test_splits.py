from collections import Counter, defaultdict

import numpy as np

from training.splits import Candidate, assign_splits


def draw_splits(candidates, seed=0, validation_share=0.2, test_share=0.2):
    splits = assign_splits(candidates, seed=seed, validation_share=validation_share, test_share=test_share)
    return {candidate.picture_id: split for candidate, split in zip(candidates, splits, strict=True)}


def candidates(num_classes=4, per_class=30, per_group=1, published=None):
    return [
        Candidate(f"{label}/{picture}", str(label), f"{label}/plant {picture // per_group}", published)
        for label in range(num_classes)
        for picture in range(per_class)
    ]


def test_the_order_of_the_pictures_never_matters():
    pictures = candidates(per_group=3)
    shuffled = [pictures[at] for at in np.random.default_rng(1).permutation(len(pictures))]
    assert draw_splits(pictures) == draw_splits(shuffled)


def test_another_seed_draws_other_pictures():
    assert draw_splits(candidates(), seed=1) != draw_splits(candidates(), seed=2)


def test_every_class_gives_the_same_share():
    splits = draw_splits(candidates(per_class=50))
    counts = Counter((name.partition("/")[0], split) for name, split in splits.items())
    for label in "0123":
        # A fifth of 50 is tested, and a fifth of the 40 that are left validates.
        assert [counts[label, split] for split in ("test", "validation", "train")] == [10, 8, 32]


def test_groups_never_straddle():
    pictures = candidates(per_group=4)
    splits, of_group = draw_splits(pictures), defaultdict(set)
    for picture in pictures:
        of_group[picture.group].add(splits[picture.picture_id])
    assert all(len(found) == 1 for found in of_group.values())
    assert set().union(*of_group.values()) == {"train", "validation", "test"}


def test_a_group_across_published_splits_goes_to_test_whatever_the_order():
    pictures = [Candidate("a", "x", "plant", "test"), Candidate("b", "x", "plant", "train")]
    assert draw_splits(pictures) == draw_splits(pictures[::-1]) == {"a": "test", "b": "test"}


def test_published_splits_are_not_drawn_again():
    others = Candidate("t", "0", "t", "test"), Candidate("v", "0", "v", "validation")
    pictures = [*candidates(published="train"), *others]
    splits = draw_splits(pictures)
    assert splits.pop("t") == "test"
    assert splits.pop("v") == "validation"
    assert set(splits.values()) == {"train"}


def test_published_training_pictures_never_become_test_pictures():
    assert "test" not in draw_splits(candidates(published="train")).values()


def test_validation_is_cut_from_published_training_pictures():
    splits = draw_splits([*candidates(published="train"), Candidate("t", "0", "t", "test")])
    assert Counter(splits.values()) == {"train": 96, "validation": 24, "test": 1}


def test_a_class_keeps_a_training_picture():
    splits = draw_splits(candidates(per_class=2), validation_share=0.9, test_share=0.9)
    assert {name.partition("/")[0] for name, split in splits.items() if split == "train"} == set("0123")


def test_a_share_of_nothing_takes_nothing():
    assert set(draw_splits(candidates(), validation_share=0.0, test_share=0.0).values()) == {"train"}
