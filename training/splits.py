"""Which pictures train, validate and test. Drawn once, by hash: the order of the files never matters.

Published splits stay. Validation is cut from train, class by class and whole groups at a time.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from training.sources.record import Split

_WEAKEST_FIRST: Final[tuple[Split, ...]] = ("train", "validation", "test")


class Candidate(msgspec.Struct, frozen=True):
    """What the draw needs to know of one picture."""

    picture_id: str
    label: str
    group: str
    """Never empty: the picture's own id where it belongs to no group."""
    published: Split | None


def assign_splits(
    candidates: Sequence[Candidate], *, seed: int, validation_share: float, test_share: float
) -> list[Split]:
    """Gives each picture its split.

    Pictures without a published split first give up `test_share` of each class to test if their source publishes no
    test split at all; then `validation_share` of each class's training pictures go to validation unless the source
    publishes one. A class keeps at least one training group; a group goes where its first picture by hash goes. A group
    that straddles published splits goes where it does least harm: to test, else to validation.

    Args:
        candidates: All pictures of one source.
        seed: Changes the draw.
        validation_share: Share of each class's training pictures in [0, 1).
        test_share: Share of each class's pictures in [0, 1).

    Returns:
        A split a candidate, in their order.
    """
    published = {candidate.published for candidate in candidates}
    split_of_group: dict[str, Split] = {}
    for split in _WEAKEST_FIRST:
        split_of_group |= {candidate.group: split for candidate in candidates if candidate.published == split}
    if "test" not in published:
        open_to_test = [candidate for candidate in candidates if candidate.group not in split_of_group]
        _cut(open_to_test, split_of_group, "test", test_share, seed)
    if "validation" not in published:
        _cut(candidates, split_of_group, "validation", validation_share, seed)
    return [split_of_group.get(candidate.group, "train") for candidate in candidates]


def _cut(
    candidates: Sequence[Candidate], split_of_group: dict[str, Split], split: Split, share: float, seed: int
) -> None:
    """Moves `share` of each class's training pictures to another split, whole groups at a time."""
    groups_of_label: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for candidate in candidates:
        if split_of_group.get(candidate.group, "train") == "train":
            groups_of_label[candidate.label][candidate.group] += 1
    for label in sorted(groups_of_label):
        groups = groups_of_label[label]
        wanted = round(share * sum(groups.values()))
        for group in sorted(groups, key=lambda name: _draw(seed, split, name))[:-1]:
            if wanted <= 0:
                break
            split_of_group[group] = split
            wanted -= groups[group]


def _draw(seed: int, split: Split, group: str) -> bytes:
    return hashlib.sha256(f"{seed}/{split}/{group}".encode()).digest()
