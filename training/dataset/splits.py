"""The split of each picture: train, validation, calibration or test.

Published splits stay. If a group (an observation, near copies) straddles published splits, the pictures in the weaker
split are left out, never moved: test is stronger than validation, validation stronger than calibration, calibration
stronger than train. Splits that a source does not publish are cut from its training pictures, class by class and whole
groups at a time. The choice depends on hashes of the groups' names, not on the order of the files.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import time, timedelta
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from models.taxonomy import Taxonomy
from training.dataset.sources.record import LabeledPicture, Split

Codes = npt.NDArray[np.int64]
_MOMENT: Final = timedelta(minutes=1)
_ONE_PLACE_DEGREES: Final = 0.0002  # 22 m, about twice the error of a phone's GPS


def observation_codes(pictures: Sequence[LabeledPicture]) -> Codes:
    """Returns each picture's observation as a number, -1 for none; equal names in two sources are not the same one.

    Pictures of a class for which the source names no observation are one if their EXIF says that each was taken within
    a minute of another one, at its place (or both without a place).
    """
    numbers: dict[tuple[str, ...], int] = {}
    moments = _moments(pictures)
    keys = [
        (each.source, each.record.group) if each.record.group else moments.get(row, ())
        for row, each in enumerate(pictures)
    ]
    return np.array([numbers.setdefault(key, len(numbers)) if key else -1 for key in keys], dtype=np.int64)


def _moments(pictures: Sequence[LabeledPicture]) -> dict[int, tuple[str, ...]]:
    """Returns for each row with a time and no observation the earliest picture that it is joined to, in a tuple.

    Midnight to the second is no time: scans and cameras without a clock have it.
    """
    timed = [
        (each.source, each.label, each.info.taken_at, each.record.path, row)
        for row, each in enumerate(pictures)
        if each.info.taken_at and each.info.taken_at.time() != time.min and not each.record.group
    ]
    found: dict[int, tuple[str, ...]] = {}
    recent: list[tuple[LabeledPicture, tuple[str, ...]]] = []
    for *_, row in sorted(timed):
        each = pictures[row]
        recent = [(other, moment) for other, moment in recent if _within_a_minute(other, each)]
        own = (each.source, each.label, each.record.path)
        found[row] = next((moment for other, moment in reversed(recent) if _at_one_place(other, each)), own)
        recent.append((each, found[row]))
    return found


def _within_a_minute(first: LabeledPicture, other: LabeledPicture) -> bool:
    start, end = first.info.taken_at, other.info.taken_at
    of_one_class = (first.source, first.label) == (other.source, other.label)
    return of_one_class and start is not None and end is not None and end - start <= _MOMENT


def _at_one_place(first: LabeledPicture, other: LabeledPicture) -> bool:
    place, other_place = first.info.coordinates, other.info.coordinates
    if place is None or other_place is None:
        return place == other_place
    north, east = place[0] - other_place[0], (place[1] - other_place[1]) * math.cos(math.radians(place[0]))
    return math.hypot(north, east) <= _ONE_PLACE_DEGREES


def name_codes(pictures: Sequence[LabeledPicture], taxonomy: Taxonomy) -> Codes:
    """Returns what each picture shows as a number: its taxon, or its genus where a class names no more than that."""
    genera = {taxon.genus for taxon in taxonomy.taxa if taxon.rank == "genus"}
    names = [taxon.genus if taxon.genus in genera else taxon.taxon_id for taxon in taxonomy.taxa]
    of_label = dict(zip(taxonomy.output_keys, (names[taxon] for taxon in taxonomy.taxon_of_output), strict=True))
    return numbered(of_label[picture.label] for picture in pictures)


def strongest_rows(published: Codes, groups: Codes) -> Codes:
    """Returns for each group the position of a picture in its strongest published split; shape (groups,)."""
    rows = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    order = np.argsort(published, kind="stable")
    rows[groups[order]] = order  # the last assignment counts
    return rows


def join_groups(*memberships: Codes) -> Codes:
    """Joins groupings: pictures that share a group in any of them, directly or through others, share one in the result.

    All have the shape (pictures,); -1 is no group. In the result every picture has a group, numbered from 0.
    """
    num_pictures = len(memberships[0])
    rows, columns, num_nodes = [], [], num_pictures
    for membership in memberships:
        members = np.flatnonzero(membership >= 0)
        rows.append(members)
        columns.append(num_nodes + membership[members])
        num_nodes += int(membership.max(initial=-1)) + 1
    row, column = np.concatenate(rows), np.concatenate(columns)
    graph = coo_array((np.ones(len(row), dtype=np.int8), (row, column)), shape=(num_nodes, num_nodes))
    _, labels = connected_components(graph, directed=False)
    _, groups = np.unique(labels[:num_pictures], return_inverse=True)
    return np.asarray(groups, dtype=np.int64)


def group_names(groups: Codes, picture_ids: Sequence[str]) -> list[str]:
    """Names each picture's group by its smallest picture id, so that the name does not depend on the order."""
    smallest: dict[int, str] = {}
    for group, picture_id in zip(groups.tolist(), picture_ids, strict=True):
        if group not in smallest or picture_id < smallest[group]:
            smallest[group] = picture_id
    return [smallest[group] for group in groups.tolist()]


SPLITS_BY_STRENGTH: Final[tuple[Split, ...]] = ("train", "calibration", "validation", "test")
_STRENGTH: Final[dict[Split | None, int]] = {None: -1} | {split: at for at, split in enumerate(SPLITS_BY_STRENGTH)}
_TRAIN, _TEST = _STRENGTH["train"], _STRENGTH["test"]


class Shares(msgspec.Struct, frozen=True):
    """For each split that a source does not publish, the share of each class's training pictures that moves to it."""

    test: float = 0.0
    validation: float = 0.0
    calibration: float = 0.0


class Candidates(msgspec.Struct, frozen=True):
    """The pictures to split, as arrays with one number for each picture."""

    group_names: Sequence[str]
    """Name of each picture's group, the only input of its random number."""
    labels: Codes
    sources: Codes
    groups: Codes
    published: Codes
    """Published split: its position in `SPLITS_BY_STRENGTH`, or -1."""


def draw_splits(
    pictures: Sequence[LabeledPicture], groups: Codes, group_names: Sequence[str], shares: Shares, seed: int
) -> list[Split]:
    """Assigns each picture to a split (see `assign_splits`), given number and name of each picture's group."""
    candidates = Candidates(
        group_names=group_names,
        labels=numbered(picture.label for picture in pictures),
        sources=numbered(picture.source for picture in pictures),
        groups=groups,
        published=published_codes([picture.record.split for picture in pictures]),
    )
    return [SPLITS_BY_STRENGTH[code] for code in assign_splits(candidates, shares, seed).tolist()]


def numbered(names: Iterable[str]) -> Codes:
    """Returns each name as a number; equal names share it."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def published_codes(published: Sequence[Split | None]) -> Codes:
    """Returns splits as positions in `SPLITS_BY_STRENGTH`; -1 if none is published."""
    return np.array([_STRENGTH[split] for split in published], dtype=np.int64)


def straddling(published: Codes, groups: Codes) -> npt.NDArray[np.bool_]:
    """Returns which pictures are in the weaker split of a group that straddles published splits.

    A picture without a published split counts as weaker than every split but train: as a training picture it would leak
    the group's validation or test pictures. In a group of training pictures it becomes one.
    """
    strongest = np.full(int(groups.max(initial=-1)) + 1, -1, dtype=np.int64)
    np.maximum.at(strongest, groups, published)
    of_group = strongest[groups]
    return (of_group > _TRAIN) & (published < of_group)


def assign_splits(candidates: Candidates, shares: Shares, seed: int) -> Codes:
    """Assigns each picture to a split; no group may straddle published splits (see `straddling`).

    In sources without a published test split, `shares.test` of each class becomes test; then validation and calibration
    in the same way. A group can only move if none of its pictures' sources publishes the split. A class keeps at least
    one training group.

    Returns:
        Position in `SPLITS_BY_STRENGTH`; shape (pictures,).
    """
    split_of_group = np.full(int(candidates.groups.max(initial=-1)) + 1, _TRAIN, dtype=np.int64)
    np.maximum.at(split_of_group, candidates.groups, candidates.published)
    taken = np.zeros(len(split_of_group), dtype=bool)  # groups with a published split never become test
    taken[candidates.groups[candidates.published >= 0]] = True
    draws = _draws(candidates, seed)
    for column, (split, share) in enumerate(
        (("test", shares.test), ("validation", shares.validation), ("calibration", shares.calibration))
    ):
        code = SPLITS_BY_STRENGTH.index(split)
        # A group can move if no source of its pictures publishes the split.
        publishing = np.unique(candidates.sources[candidates.published == code])
        open_groups = split_of_group == _TRAIN
        open_groups[candidates.groups[np.isin(candidates.sources, publishing)]] = False
        if code == _TEST:
            open_groups &= ~taken
        split_of_group[_cut(candidates, open_groups, split_of_group, share, draws[:, column])] = code
    return np.asarray(split_of_group[candidates.groups])


def _cut(
    candidates: Candidates,
    open_groups: npt.NDArray[np.bool_],
    split_of_group: Codes,
    share: float,
    draw: npt.NDArray[np.uint64],
) -> Codes:
    """Chooses groups, in the order of their random numbers, while they bring each class nearer to its share."""
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
    """The training groups of each class, counted so that no class loses its last one."""

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
        """Yields for each class the groups that may move, by random number, and the number of its pictures in each."""
        labels, groups = np.divmod(self._pairs, self._num_groups)
        order = np.lexsort((draw[groups], labels))
        order = order[open_groups[groups[order]]]
        starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
        for rows in np.split(order, starts[1:]) if len(order) else ():
            yield groups[rows].tolist(), self._counts[rows].tolist()

    def spare(self, group: int) -> bool:
        """Returns whether every class of the group has another training group."""
        return all(self._left[label] > 1 for label in self._labels_of[group])

    def take(self, group: int, chosen: set[int]) -> None:
        """Moves a group from training to the chosen ones."""
        if group not in chosen:
            chosen.add(group)
            for label in self._labels_of[group]:
                self._left[label] -= 1


def _draws(candidates: Candidates, seed: int) -> npt.NDArray[np.uint64]:
    """Returns three random numbers for each group, from its name; shape (groups, 3)."""
    groups, first = np.unique(candidates.groups, return_index=True)
    draws = np.zeros((int(candidates.groups.max(initial=-1)) + 1, 3), dtype=np.uint64)
    for group, at in zip(groups.tolist(), first.tolist(), strict=True):
        digest = hashlib.sha256(f"{seed}/{candidates.group_names[at]}".encode()).digest()
        draws[group] = np.frombuffer(digest, dtype="<u8", count=3)
    return draws
