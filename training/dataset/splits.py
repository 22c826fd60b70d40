"""The split of each picture: train, validation, calibration or test.

Published splits stay. If a group (an observation, near copies) straddles published splits, the pictures in the weaker
split are left out, never moved: test is stronger than validation, validation stronger than calibration, calibration
stronger than train. Splits that a source does not publish are cut from its training pictures, class by class and whole
groups at a time. The choice depends on hashes of the groups' names, not on the order of the files.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from models.taxonomy import Taxon, Taxonomy
from training.dataset.sources.record import Coordinates, LabeledPicture, Split

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
    recent: list[tuple[str, str, datetime, str, int]] = []  # of the class, within a minute
    for source, label, taken_at, path, row in sorted(timed):
        recent = [each for each in recent if each[:2] == (source, label) and taken_at - each[2] <= _MOMENT]
        place = pictures[row].info.coordinates
        beside = [each[-1] for each in recent if _at_one_place(pictures[each[-1]].info.coordinates, place)]
        found[row] = found[beside[-1]] if beside else (source, label, path)
        recent.append((source, label, taken_at, path, row))
    return found


def _at_one_place(first: Coordinates | None, other: Coordinates | None) -> bool:
    if first is None or other is None:
        return first == other
    north = first[0] - other[0]
    east = (first[1] - other[1]) * math.cos(math.radians(first[0]))
    return math.hypot(north, east) <= _ONE_PLACE_DEGREES


def taxon_of_label(taxonomy: Taxonomy) -> dict[str, Taxon]:
    """Returns key of an output -> its taxon."""
    taxa = (taxonomy.taxa[position] for position in taxonomy.taxon_of_output)
    return dict(zip(taxonomy.output_keys, taxa, strict=True))


def name_codes(pictures: Sequence[LabeledPicture], taxonomy: Taxonomy) -> Codes:
    """Returns what each picture shows as a number: its taxon, or its genus where a class names no more than that."""
    genera = {taxon.genus for taxon in taxonomy.taxa if taxon.rank == "genus"}
    names = {
        label: taxon.genus if taxon.genus in genera else taxon.taxon_id
        for label, taxon in taxon_of_label(taxonomy).items()
    }
    return numbered(names[picture.label] for picture in pictures)


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
    rows = []
    columns = []
    num_nodes = num_pictures
    for membership in memberships:
        members = np.flatnonzero(membership >= 0)
        rows.append(members)
        columns.append(num_nodes + membership[members])
        num_nodes += int(membership.max(initial=-1)) + 1
    connected = connected_parts(num_nodes, np.concatenate(rows), np.concatenate(columns))
    return np.unique(connected[:num_pictures], return_inverse=True)[1]


def connected_parts(num_nodes: int, ends: Codes, other_ends: Codes) -> Codes:
    """Returns the part of each node of a graph, given both ends of its edges."""
    graph = coo_array((np.ones(len(ends), dtype=np.bool_), (ends, other_ends)), shape=(num_nodes, num_nodes))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def group_names(groups: Codes, picture_ids: Sequence[str]) -> list[str]:
    """Names each picture's group by its smallest picture id, so that the name does not depend on the order."""
    smallest: dict[int, str] = {}
    for group, picture_id in zip(groups.tolist(), picture_ids, strict=True):
        if group not in smallest or picture_id < smallest[group]:
            smallest[group] = picture_id
    return [smallest[group] for group in groups.tolist()]


SPLITS_BY_STRENGTH: Final[tuple[Split, ...]] = ("train", "calibration", "validation", "test")
_STRENGTH: Final[dict[Split | None, int]] = {None: -1} | {split: at for at, split in enumerate(SPLITS_BY_STRENGTH)}
_TRAIN: Final = _STRENGTH["train"]


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
    strongest = published[strongest_rows(published, groups)[groups]]
    return (strongest > _TRAIN) & (published < strongest)


def draw_splits(
    pictures: Sequence[LabeledPicture],
    groups: Codes,
    group_names: Sequence[str],
    shares: Mapping[Split, float],
    seed: int,
) -> list[Split]:
    """Assigns each picture to a split, given number and name of its group; none may straddle (see `straddling`).

    In sources without a published test split, the share of test of each class becomes test; then validation and
    calibration in the same way. A group can only move if none of its pictures' sources publishes the split. A class
    keeps at least one training group.
    """
    labels = numbered(picture.label for picture in pictures)
    sources = numbered(picture.source for picture in pictures)
    published = published_codes([picture.record.split for picture in pictures])
    split_of_group = np.full(int(groups.max(initial=-1)) + 1, _TRAIN, dtype=np.int64)
    np.maximum.at(split_of_group, groups, published)
    draws = _draws(groups, group_names, seed)
    for column, split in enumerate(SPLITS_BY_STRENGTH[:0:-1]):
        training = split_of_group == _TRAIN
        may_move = training.copy()
        may_move[groups[np.isin(sources, sources[published == _STRENGTH[split]])]] = False
        if split == "test":  # which a group with a published split never becomes
            may_move[groups[published >= 0]] = False
        rows = training[groups]
        chosen = _cut(labels[rows], groups[rows], may_move, shares[split], draws[:, column])
        split_of_group[chosen] = _STRENGTH[split]
    return [SPLITS_BY_STRENGTH[code] for code in split_of_group[groups].tolist()]


def _cut(
    labels: Codes, groups: Codes, may_move: npt.NDArray[np.bool_], share: float, draw: npt.NDArray[np.uint64]
) -> list[int]:
    """Chooses groups, in the order of their random numbers, while they bring each class nearer to its share.

    `labels` and `groups` are those of the training pictures. No class loses its last training group.
    """
    if share == 0:
        return []
    pairs, counts = np.unique(labels * len(draw) + groups, return_counts=True)
    label_of, group_of = np.divmod(pairs, len(draw))
    num_left = Counter(label_of.tolist())  # training groups of each class
    labels_of: dict[int, list[int]] = {}
    for label, group in zip(label_of.tolist(), group_of.tolist(), strict=True):
        labels_of.setdefault(group, []).append(label)
    order = np.lexsort((draw[group_of], label_of))
    order = order[may_move[group_of[order]]]
    chosen: set[int] = set()
    for rows in np.split(order, np.flatnonzero(np.diff(label_of[order])) + 1):  # class by class
        given = 0
        wanted = round(share * int(counts[rows].sum()))
        for group, count in zip(group_of[rows].tolist(), counts[rows].tolist(), strict=True):
            is_wanted = given + count / 2 <= wanted and all(num_left[label] > 1 for label in labels_of[group])
            if is_wanted and group not in chosen:
                chosen.add(group)
                num_left.subtract(labels_of[group])
            if group in chosen:
                given += count
    return sorted(chosen)


def _draws(groups: Codes, group_names: Sequence[str], seed: int) -> npt.NDArray[np.uint64]:
    """Returns three random numbers for each group, from its name; shape (groups, 3)."""
    draws = np.zeros((int(groups.max(initial=-1)) + 1, 3), dtype=np.uint64)
    numbers, first = np.unique(groups, return_index=True)
    for group, at in zip(numbers.tolist(), first.tolist(), strict=True):
        digest = hashlib.sha256(f"{seed}/{group_names[at]}".encode()).digest()
        draws[group] = np.frombuffer(digest, dtype="<u8", count=3)
    return draws
