"""Which pictures train, validate, calibrate and test. Drawn once, by hash: the order of the files never matters.

Published splits stay. Where a group (an observation, near duplicates) straddles them, test beats validation beats
train: the picture in the weaker split is left out, never moved. What a source does not publish is cut from its training
pictures, class by class and whole groups at a time.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from training.dataset.sources.record import Split

SPLITS: Final[tuple[Split, ...]] = ("train", "calibration", "validation", "test")  # the weakest first
_STRENGTH: Final[dict[Split | None, int]] = {None: -1} | {split: at for at, split in enumerate(SPLITS)}
_TRAIN, _TEST = _STRENGTH["train"], _STRENGTH["test"]
Codes = npt.NDArray[np.int64]


class Shares(msgspec.Struct, frozen=True):
    """How much of each class's training pictures is cut off for what the source does not publish."""

    test: float = 0.0
    validation: float = 0.0
    calibration: float = 0.0


class Candidates(msgspec.Struct, frozen=True):
    """What the draw needs to know; one entry a picture."""

    group_names: Sequence[str]
    """Name of each picture's group: its draw follows from nothing else."""
    labels: Codes
    """Class as a number."""
    sources: Codes
    """Data set as a number."""
    groups: Codes
    """Group as a number; pictures alone have numbers of their own."""
    published: Codes
    """Published split: its position in `SPLITS`, or -1."""


def published_codes(published: Sequence[Split | None]) -> Codes:
    """Splits as positions in `SPLITS`; -1 where none is published."""
    return np.array([_STRENGTH[split] for split in published], dtype=np.int64)


def straddling(published: Codes, groups: Codes) -> npt.NDArray[np.bool_]:
    """Finds the pictures in the weaker split of a group that straddles published splits.

    A picture without a published split counts as the weakest where its group reaches a judged split, since it would
    have to go there or leak; beside training pictures it trains.
    """
    strongest = np.full(int(groups.max(initial=-1)) + 1, -1, dtype=np.int64)
    np.maximum.at(strongest, groups, published)
    of_group = strongest[groups]
    return (of_group > _TRAIN) & (published < of_group)


def assign_splits(candidates: Candidates, shares: Shares, seed: int) -> Codes:
    """Gives each picture its split; no group may straddle published splits (see `straddling`).

    Sources that publish no test split give up `shares.test` of each class to it; then come validation and calibration
    in the same way. Only groups of which every picture's source lacks the split can be cut. A class keeps at least one
    training group.

    Args:
        candidates: All pictures.
        shares: Each in [0, 1).
        seed: Changes the draw.

    Returns:
        Position in `SPLITS`; shape (pictures,).
    """
    split_of_group = np.full(int(candidates.groups.max(initial=-1)) + 1, _TRAIN, dtype=np.int64)
    np.maximum.at(split_of_group, candidates.groups, candidates.published)
    taken = np.zeros(len(split_of_group), dtype=bool)  # groups that publish anything are no test pictures of ours
    taken[candidates.groups[candidates.published >= 0]] = True
    draws = _draws(candidates, seed)
    for column, (split, share) in enumerate(
        (("test", shares.test), ("validation", shares.validation), ("calibration", shares.calibration))
    ):
        code = SPLITS.index(split)
        open_groups = (split_of_group == _TRAIN) & _all_sources_lack(candidates, code)
        if code == _TEST:
            open_groups &= ~taken
        split_of_group[_cut(candidates, open_groups, split_of_group, share, draws[:, column])] = code
    return np.asarray(split_of_group[candidates.groups])


def _all_sources_lack(candidates: Candidates, code: int) -> npt.NDArray[np.bool_]:
    """For each group: whether no source of its pictures publishes the split."""
    publishing = np.unique(candidates.sources[candidates.published == code])
    lacks = np.ones(int(candidates.groups.max(initial=-1)) + 1, dtype=bool)
    lacks[candidates.groups[np.isin(candidates.sources, publishing)]] = False
    return lacks


def _cut(
    candidates: Candidates,
    open_groups: npt.NDArray[np.bool_],
    split_of_group: Codes,
    share: float,
    draw: npt.NDArray[np.uint64],
) -> Codes:
    """Chooses groups, in the order of their draws, while they bring each class nearer to its share."""
    if share == 0:
        return np.array([], dtype=np.int64)
    classes = _TrainingGroups(candidates, split_of_group == _TRAIN)
    chosen: set[int] = set()
    for groups, counts in classes.by_label(open_groups, draw):
        given, wanted = 0, round(share * sum(counts))
        for group, count in zip(groups, counts, strict=True):
            nearer = given + count / 2 <= wanted
            if group in chosen or (nearer and classes.spare(group)):
                given += count
                classes.take(group, chosen)
    return np.array(sorted(chosen), dtype=np.int64)


class _TrainingGroups:
    """Which training groups the classes have, so that none gives up its last one.

    Args:
        candidates: All pictures.
        training: For each group, whether it trains.
    """

    def __init__(self, candidates: Candidates, training: npt.NDArray[np.bool_]) -> None:
        self._num_groups = len(training)
        rows = training[candidates.groups]
        pairs = candidates.labels[rows] * self._num_groups + candidates.groups[rows]
        self._pairs, self._counts = np.unique(pairs, return_counts=True)
        labels, groups = np.divmod(self._pairs, self._num_groups)
        self._left = np.bincount(labels).tolist()
        self._labels_of: dict[int, list[int]] = {}
        for label, group in zip(labels.tolist(), groups.tolist(), strict=True):
            self._labels_of.setdefault(group, []).append(label)

    def by_label(
        self, open_groups: npt.NDArray[np.bool_], draw: npt.NDArray[np.uint64]
    ) -> Iterator[tuple[list[int], list[int]]]:
        """For each class the groups that may be cut, in the order of their draws, and how many pictures each has."""
        labels, groups = np.divmod(self._pairs, self._num_groups)
        order = np.lexsort((draw[groups], labels))
        order = order[open_groups[groups[order]]]
        starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
        for rows in np.split(order, starts[1:]) if len(order) else ():
            yield groups[rows].tolist(), self._counts[rows].tolist()

    def spare(self, group: int) -> bool:
        """Whether every class of the group has another training group."""
        return all(self._left[label] > 1 for label in self._labels_of[group])

    def take(self, group: int, chosen: set[int]) -> None:
        """Moves a group from training to those chosen."""
        if group not in chosen:
            chosen.add(group)
            for label in self._labels_of[group]:
                self._left[label] -= 1


def _draws(candidates: Candidates, seed: int) -> npt.NDArray[np.uint64]:
    """Three random numbers a group, from its name; shape (groups, 3)."""
    groups, first = np.unique(candidates.groups, return_index=True)
    draws = np.zeros((int(candidates.groups.max(initial=-1)) + 1, 3), dtype=np.uint64)
    for group, at in zip(groups.tolist(), first.tolist(), strict=True):
        digest = hashlib.sha256(f"{seed}/{candidates.group_names[at]}".encode()).digest()
        draws[group] = np.frombuffer(digest, dtype="<u8", count=3)
    return draws
