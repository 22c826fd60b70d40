"""Groups of pictures that must be in one split: pictures of one observation or moment, and near copies."""

import math
from collections.abc import Sequence
from datetime import time, timedelta
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from models.taxonomy import Taxonomy
from training.dataset.labeled_picture import LabeledPicture

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


def copy_codes(pictures: Sequence[LabeledPicture]) -> Codes:
    """Returns each picture's content as a number: byte-for-byte copies share it."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(picture.info.sha256, len(numbers)) for picture in pictures], dtype=np.int64)


def name_codes(pictures: Sequence[LabeledPicture], taxonomy: Taxonomy) -> Codes:
    """Returns what each picture shows as a number: its taxon, or its genus where a class names no more than that."""
    genera = {taxon.genus for taxon in taxonomy.taxa if taxon.rank == "genus"}
    names = [taxon.genus if taxon.genus in genera else taxon.taxon_id for taxon in taxonomy.taxa]
    numbers: dict[str, int] = {}
    of_label = {
        output.key: numbers.setdefault(names[taxon], len(numbers))
        for output, taxon in zip(taxonomy.outputs, taxonomy.taxon_of_output.tolist(), strict=True)
    }
    return np.array([of_label[picture.label] for picture in pictures], dtype=np.int64)


def strongest_rows(published: Codes, groups: Codes) -> Codes:
    """Returns for each group the position of a picture in its strongest published split; shape (groups,)."""
    rows = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    order = np.argsort(published, kind="stable")
    rows[groups[order]] = order  # the last assignment counts
    return rows


def join_groups(*memberships: Codes) -> Codes:
    """Joins groupings: pictures that share a group in any of them, directly or through others, share one in the result.

    Args:
        memberships: Each of shape (pictures,): the number of the picture's group, -1 for none.

    Returns:
        Shape (pictures,): the group of each picture, numbered from 0.
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
