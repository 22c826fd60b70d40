from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np

from tests.training.dataset.labeled import picture
from training.dataset.splits import draw_splits as splits_of
from training.dataset.splits import numbered, published_codes, straddling


class Drawn(NamedTuple):
    """One picture in a table of a data set."""

    name: str
    label: str
    group: str
    published: str | None = None
    source: str = "s"


def draw_splits(drawn, seed=0, validation=0.2, test=0.2, calibration=0.0):
    pictures = [picture(f"{each.source}:{each.name}", each.label, split=each.published) for each in drawn]
    names = [each.group for each in drawn]
    shares = {"test": test, "validation": validation, "calibration": calibration}
    splits = splits_of(pictures, numbered(names), names, shares, seed)
    return {each.name: split for each, split in zip(drawn, splits, strict=True)}


def generated(num_classes=4, per_class=30, per_group=1, published=None, source="s"):
    return [
        Drawn(f"{label}/{number}", label, f"{label}/{number // per_group}", published, source)
        for label in (f"{source}/{index}" for index in range(num_classes))
        for number in range(per_class)
    ]


def test_the_order_of_the_pictures_never_matters():
    pictures = generated(per_group=3)
    shuffled = [pictures[at] for at in np.random.default_rng(1).permutation(len(pictures))]
    assert draw_splits(pictures) == draw_splits(shuffled)


def test_every_class_gives_the_same_share():
    splits = draw_splits(generated(per_class=50), calibration=0.25)
    counts = Counter((name.split("/")[1], split) for name, split in splits.items())
    for label in "0123":
        # A fifth of 50 is tested, a fifth of the 40 that are left validates, and a quarter of the rest calibrates.
        assert [counts[label, split] for split in ("test", "validation", "calibration", "train")] == [10, 8, 8, 24]


def test_each_split_is_drawn_with_numbers_of_its_own():
    pictures = generated(num_classes=1, per_class=1000)
    test, validation = (
        {name for name, split in draw_splits(pictures, **shares).items() if split != "train"}
        for shares in ({"test": 0.5, "validation": 0.0}, {"test": 0.0, "validation": 0.5})
    )
    assert (len(test), len(validation), len(test & validation)) == (500, 500, 233)


def test_groups_never_straddle():
    pictures = generated(per_group=4)
    splits, of_group = draw_splits(pictures, calibration=0.2), defaultdict(set)
    for drawn in pictures:
        of_group[drawn.group].add(splits[drawn.name])
    assert all(len(found) == 1 for found in of_group.values())
    assert set().union(*of_group.values()) == {"train", "validation", "calibration", "test"}


def test_published_splits_are_kept():
    others = Drawn("t", "s/0", "t", "test"), Drawn("v", "s/0", "v", "validation")
    splits = draw_splits([*generated(published="train"), *others])
    assert (splits.pop("t"), splits.pop("v")) == ("test", "validation")
    assert set(splits.values()) == {"train"}


def test_calibration_is_cut_from_training_pictures_where_validation_is_published():
    others = Drawn("t", "s/0", "t", "test"), Drawn("v", "s/0", "v", "validation")
    splits = draw_splits([*generated(published="train"), *others], calibration=0.1)
    assert Counter(splits.values()) == {"train": 108, "calibration": 12, "test": 1, "validation": 1}


def test_training_pictures_of_another_source_such_as_corrections_leave_the_test_as_it_was():
    own = generated()
    more = [Drawn(f"new {number}", "s/0", f"new {number}", "train", "corrections") for number in range(50)]
    before, after = draw_splits(own), draw_splits([*own, *more])
    assert [name for name in after if after[name] == "test"] == [name for name in before if before[name] == "test"]


def test_each_source_gets_the_splits_that_it_does_not_publish():
    official = [*generated(published="train", source="a"), Drawn("t", "a/0", "t", "test", "a")]
    splits = draw_splits([*official, *generated(source="b")])
    assert [name for name, split in splits.items() if split == "test" and not name.startswith("b/")] == ["t"]
    assert sum(split == "test" for name, split in splits.items() if name.startswith("b/")) == 24


def test_a_group_with_published_training_pictures_never_becomes_test():
    shared = Drawn("a/copy", "a/0", "pair", "train", "a"), Drawn("b/copy", "b/0", "pair", None, "b")
    pictures = [*shared, *(Drawn(f"b/{n}", "b/0", f"b/{n}", None, "b") for n in range(3))]
    for seed in range(20):
        assert draw_splits(pictures, seed, test=0.5, validation=0.0)["b/copy"] == "train"


def test_a_class_keeps_a_training_picture_even_of_a_group_that_it_shares():
    pictures = [Drawn(f"a/{n}", "a", f"g{n}") for n in range(10)] + [Drawn("b", "b", "g0")]
    for seed in range(50):
        assert draw_splits(pictures, seed, test=0.3, validation=0.3)["b"] == "train"


def test_a_group_too_large_for_the_share_does_not_stop_the_draw():
    pictures = [Drawn(f"a/{n}", "a", f"g{max(n, 9)}") for n in range(40)]  # one group of ten, thirty pictures alone
    for seed in range(50):
        splits = draw_splits(pictures, seed, test=0.1, validation=0.0)
        assert Counter(splits.values())["test"] == 4


def leaks(*pairs):
    groups, splits = zip(*pairs, strict=True)
    found = straddling(published_codes(splits), np.array(groups))
    return [at for at, leaking in enumerate(found) if leaking]


def test_test_beats_validation_beats_train_in_a_group_that_straddles():
    assert leaks((0, "test"), (0, "validation"), (0, "train"), (1, "validation"), (1, "train"), (2, "train")) == [
        1,
        2,
        4,
    ]


def test_a_picture_without_a_split_leaks_beside_a_test_picture_but_not_beside_a_training_picture():
    assert leaks((0, "test"), (0, None), (1, "train"), (1, None), (2, None), (2, None)) == [1]
