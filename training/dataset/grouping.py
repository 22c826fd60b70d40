"""Which pictures belong together: those of one observation, and near duplicates of one another."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from training.dataset.labeled_picture import LabeledPicture

Codes = npt.NDArray[np.int64]


def observation_codes(pictures: Sequence[LabeledPicture]) -> Codes:
    """Each picture's observation as a number; -1 where it belongs to none. Equal names of two sources differ."""
    numbers: dict[tuple[str, str], int] = {}
    return np.array(
        [
            numbers.setdefault((picture.source, picture.record.group), len(numbers)) if picture.record.group else -1
            for picture in pictures
        ],
        dtype=np.int64,
    )


def copy_codes(pictures: Sequence[LabeledPicture]) -> Codes:
    """Each picture's content as a number: byte-for-byte copies share it."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(picture.info.sha256, len(numbers)) for picture in pictures], dtype=np.int64)


def strongest_rows(published: Codes, groups: Codes) -> Codes:
    """For each group the position of a picture in its strongest published split; shape (groups,)."""
    rows = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.int64)
    order = np.argsort(published, kind="stable")
    rows[groups[order]] = order  # of several the last one stays
    return rows


def join_groups(*memberships: Codes) -> Codes:
    """Joins groupings: two pictures that share a group in any of them, directly or in steps, share one in the result.

    Args:
        memberships: Each of shape (pictures,): a number a group, -1 for pictures alone.

    Returns:
        Shape (pictures,): groups numbered from 0, every picture in one.
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
    """Names each picture's group after the least of its picture ids, so that the name does not depend on any order."""
    least: dict[int, str] = {}
    for group, picture_id in zip(groups.tolist(), picture_ids, strict=True):
        if group not in least or picture_id < least[group]:
            least[group] = picture_id
    return [least[group] for group in groups.tolist()]
