"""Which pictures the training set keeps.

Of byte-for-byte copies one is kept. A picture is left out if a picture of the same observation, or a near copy of it
with the same name, is in a published split with higher precedence (test before validation before calibration before
train): the network would otherwise train on what it is later measured on. Outputs without a picture are dropped.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np

from models.taxonomy import Taxonomy
from training.dataset.audit.licenses import license_id
from training.dataset.sources.record import LabeledPicture, LeftOut, Split
from training.dataset.splits import (
    Codes,
    group_names,
    join_groups,
    numbered,
    observation_codes,
    published_codes,
    straddling,
    strongest_rows,
)

# Of equal pictures, the one in the first of these splits is kept. None, no published split, comes before "train" since
# such a picture may still become a test picture.
_PRECEDENCE: Final[dict[Split | None, int]] = {"test": 0, "validation": 1, "calibration": 2, None: 3, "train": 4}


def drop_copies(
    pictures: Sequence[LabeledPicture], taxon_of_label: Mapping[str, str]
) -> tuple[list[LabeledPicture], list[LeftOut]]:
    """Leaves out byte-for-byte copies.

    Of equal files one is kept: by published split, in the order test, validation, calibration, none, train; within a
    split, the one with the shortest file name, since copies are called "IMG_1 (1).jpg" or "IMG_1 - Copy.jpg"; then the
    one with the smallest `picture_id`. The reason says so if the copies have different taxa.
    """
    originals: dict[str, LabeledPicture] = {}
    for picture in pictures:
        known = originals.setdefault(picture.info.sha256, picture)
        if known is not picture and _precedence(picture) < _precedence(known):
            originals[picture.info.sha256] = picture
    copies: list[LeftOut] = []
    for picture in pictures:
        original = originals[picture.info.sha256]
        if picture is not original:
            reason = f"the same bytes as {original.picture_id}"
            if taxon_of_label[picture.label] != taxon_of_label[original.label]:
                reason += f", but labeled {picture.label} here and {original.label} there"
            copies.append(LeftOut(picture=picture.picture_id, code="copy", reason=reason))
    return list(originals.values()), copies


def _precedence(picture: LabeledPicture) -> tuple[int, int, str]:
    name = picture.record.path.rpartition("/")[2]
    return _PRECEDENCE[picture.record.split], len(name), picture.picture_id


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
    """Leaves out copies, leaks and outputs without pictures, given each picture's group of near copies, -1 for none.

    Groups are joined before copies are dropped: a copy connects its observation with that of the original.
    """
    unique, left_out = drop_copies(pictures, {output.key: output.taxon_id for output in taxonomy.outputs})
    stays = np.isin([id(picture) for picture in pictures], [id(picture) for picture in unique])
    observations = join_groups(observation_codes(pictures))
    groups = join_groups(observations, near_copies, numbered(picture.info.sha256 for picture in pictures))
    published = published_codes([picture.record.split for picture in pictures])
    leaks = np.flatnonzero(straddling(published, groups) & stays)
    of_observation = straddling(published, observations)
    strongest = np.where(
        of_observation, strongest_rows(published, observations)[observations], strongest_rows(published, groups)[groups]
    )
    for row in leaks.tolist():
        code = "near_copy"
        relation = "it, or another picture of its observation, is a near copy of"
        if of_observation[row]:
            code = "observation_split"
            relation = "it belongs to the same observation as"
        stronger = pictures[strongest[row]]
        reason = f"{relation} {stronger.picture_id}, which is in the {stronger.record.split} split"
        left_out.append(LeftOut(picture=pictures[row].picture_id, code=code, reason=reason))
    stays[leaks] = False
    rows = np.flatnonzero(stays)
    kept = [pictures[row] for row in rows.tolist()]
    groups = np.unique(groups[rows], return_inverse=True)[1]
    names = group_names(groups, [picture.picture_id for picture in kept])
    labels = {picture.label for picture in kept}
    outputs = tuple(output for output in taxonomy.outputs if output.key in labels)
    taxon_ids = {output.taxon_id for output in outputs}
    taxa = tuple(taxon for taxon in taxonomy.taxa if taxon.taxon_id in taxon_ids)
    reason = "no picture of the class can be used"
    for output in taxonomy.outputs:
        if output.key not in labels:
            left_out.append(LeftOut(picture=output.key, code="no_pictures", reason=reason, num_pictures=0))
    remaining = msgspec.structs.replace(taxonomy, taxa=taxa, outputs=outputs)
    return Selection(kept, groups, names, remaining, left_out)


def manifest_columns(
    pictures: Sequence[LabeledPicture], splits: Sequence[Split], groups: Sequence[str]
) -> dict[str, Sequence[Any]]:
    """Returns the columns for `write_manifest`, given split and name of the group of each picture."""
    records = [picture.record for picture in pictures]
    infos = [picture.info for picture in pictures]
    coordinates = [record.coordinates or (None, None) for record in records]
    identifier = cache(license_id)
    return {
        **{name: [getattr(picture, name) for picture in pictures] for name in ("picture_id", "source", "label")},
        **{name: [getattr(record, name) for record in records] for name in ("path", "author", "taken_on")},
        **{name: [getattr(info, name) for info in infos] for name in ("sha256", "width", "height")},
        "shard": [""] * len(pictures),
        "offset": [0] * len(pictures),
        "length": [info.num_bytes for info in infos],
        "split": splits,
        "group": groups,
        "licence": [identifier(record.license) for record in records],
        "latitude": [latitude for latitude, _ in coordinates],
        "longitude": [longitude for _, longitude in coordinates],
    }
