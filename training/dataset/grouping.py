"""Groups of pictures that must be in one split: pictures of one observation, and near copies."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from models.taxonomy import Taxonomy
from training.dataset.labeled_picture import LabeledPicture

Codes = npt.NDArray[np.int64]


def observation_codes(pictures: Sequence[LabeledPicture]) -> Codes:
    """Returns each picture's observation as a number, -1 for none; equal names in two sources are not the same one."""
    numbers: dict[tuple[str, str], int] = {}
    return np.array(
        [
            numbers.setdefault((picture.source, picture.record.group), len(numbers)) if picture.record.group else -1
            for picture in pictures
        ],
        dtype=np.int64,
    )


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
