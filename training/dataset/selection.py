"""Which pictures the training set keeps.

Of byte-for-byte copies one is kept. A picture is left out if a picture of the same observation, or a near copy of it
with the same name, is in a published split with higher precedence (test before validation before calibration before
train): the network would otherwise train on what it is later measured on. Outputs without a picture are dropped.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from models.taxonomy import Taxonomy
from training.dataset.audit.copies import drop_copies
from training.dataset.grouping import (
    Codes,
    copy_codes,
    group_names,
    join_groups,
    observation_codes,
    strongest_rows,
)
from training.dataset.labeled_picture import LabeledPicture
from training.dataset.sources.record import LeftOut
from training.dataset.splits import published_codes, straddling

_LEAKS: Final = {
    True: ("observation_split", "it belongs to the same observation as"),
    False: ("near_copy", "it, or another picture of its observation, is a near copy of"),
}


class Selection(msgspec.Struct, frozen=True, eq=False):
    """The pictures that the training set keeps."""

    pictures: list[LabeledPicture]
    groups: Codes
    """Group of each picture, numbered from 0: pictures of one observation and near copies share a group."""
    group_names: list[str]
    """Name of each picture's group."""
    taxonomy: Taxonomy
    """The outputs that have a picture."""
    left_out: list[LeftOut]
    """The other pictures and outputs."""


def select_pictures(pictures: Sequence[LabeledPicture], near_copies: Codes, taxonomy: Taxonomy) -> Selection:
    """Leaves out copies, leaks and outputs without pictures.

    Args:
        pictures: All pictures that decode.
        near_copies: Group of near copies of each picture; -1 for none.
        taxonomy: The outputs that the pictures' labels name.
    """
    kept, groups, left_out = _leave_out(pictures, near_copies, taxonomy)
    remaining, emptied = _drop_empty_outputs(taxonomy, {picture.label for picture in kept})
    names = group_names(groups, [picture.picture_id for picture in kept])
    return Selection(kept, groups, names, remaining, [*left_out, *emptied])


def _leave_out(
    pictures: Sequence[LabeledPicture], near_copies: Codes, taxonomy: Taxonomy
) -> tuple[list[LabeledPicture], Codes, list[LeftOut]]:
    """Leaves out copies and leaks.

    Groups are joined before copies are dropped: a copy connects its observation with that of the original.

    Returns:
        The pictures that are kept, the group of each, and what was left out.
    """
    taxon_of_label = {output.key: output.taxon_id for output in taxonomy.outputs}
    unique, left_out = drop_copies(pictures, taxon_of_label)
    stays = np.isin([id(picture) for picture in pictures], [id(picture) for picture in unique])
    observations = join_groups(observation_codes(pictures))
    groups = join_groups(observations, near_copies, copy_codes(pictures))
    published = published_codes([picture.record.split for picture in pictures])
    leaks = np.flatnonzero(straddling(published, groups) & stays)
    of_observation = straddling(published, observations)
    strongest = {True: strongest_rows(published, observations), False: strongest_rows(published, groups)}
    group_of = {True: observations, False: groups}
    for row in leaks.tolist():
        same = bool(of_observation[row])
        left_out.append(_leak(pictures[row], pictures[strongest[same][group_of[same][row]]], same_observation=same))
    stays[leaks] = False
    kept = np.flatnonzero(stays)
    return [pictures[row] for row in kept.tolist()], np.unique(groups[kept], return_inverse=True)[1], left_out


def _leak(picture: LabeledPicture, stronger: LabeledPicture, *, same_observation: bool) -> LeftOut:
    code, relation = _LEAKS[same_observation]
    reason = f"{relation} {stronger.picture_id}, which is in the {stronger.record.split} split"
    return LeftOut(picture=picture.picture_id, code=code, reason=reason)


def _drop_empty_outputs(taxonomy: Taxonomy, labels: set[str]) -> tuple[Taxonomy, list[LeftOut]]:
    """Returns the taxonomy of the outputs in `labels`, and the other outputs."""
    outputs = tuple(output for output in taxonomy.outputs if output.key in labels)
    taxon_ids = {output.taxon_id for output in outputs}
    taxa = tuple(taxon for taxon in taxonomy.taxa if taxon.taxon_id in taxon_ids)
    emptied = [
        LeftOut(picture=output.key, code="no_pictures", reason="no picture of the class can be used", num_pictures=0)
        for output in taxonomy.outputs
        if output.key not in labels
    ]
    return msgspec.structs.replace(taxonomy, taxa=taxa, outputs=outputs), emptied
