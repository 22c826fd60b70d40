"""Builds the report of a preparation from the results of its steps."""

from collections.abc import Iterable, Sequence

import numpy as np

from models.taxonomy import Taxonomy
from training.dataset.audit.licenses import license_summaries
from training.dataset.audit.near_copies import NearGroups
from training.dataset.classes import Classes
from training.dataset.collection import Collection
from training.dataset.report.name_findings import name_findings
from training.dataset.report.schema import Report
from training.dataset.report.summary import summarize
from training.dataset.selection import Selection
from training.dataset.sources.record import LabeledPicture, LeftOut, Split
from training.dataset.splits import Codes


def build_report(
    collection: Collection,
    classes: Classes,
    pictures: Sequence[LabeledPicture],
    near_copies: NearGroups,
    selection: Selection,
    *,
    splits: Sequence[Split],
    left_out: Sequence[LeftOut],
    notes: Sequence[str] = (),
) -> Report:
    """Builds the report.

    Args:
        collection: The data sets and the rules.
        classes: All classes, with the names to check.
        pictures: All pictures that decode.
        near_copies: Their groups of near copies.
        selection: The pictures that are kept.
        splits: Split of each picture that is kept.
        left_out: Everything that was left out, from every step.
        notes: What the readers say about the sources.
    """
    return summarize(
        collection,
        selection.pictures,
        splits,
        left_out,
        selection.taxonomy,
        names=name_findings(classes),
        licenses=license_summaries(selection.pictures),
        near_copies=_near_copies(pictures, near_copies, {id(picture) for picture in selection.pictures}),
        two_names=_two_names(pictures, near_copies, classes.taxonomy),
        notes=(*notes, *_notes(near_copies)),
    )


def _near_copies(
    pictures: Sequence[LabeledPicture], near_copies: NearGroups, kept: set[int]
) -> tuple[tuple[str, ...], ...]:
    """Returns the picture ids of each group of near copies that has a picture in `kept`, including those left out."""
    return tuple(
        sorted(
            tuple(sorted(picture.picture_id for picture in group))
            for group in _members(pictures, near_copies.group_of)
            if len({picture.info.sha256 for picture in group}) > 1 and any(id(picture) in kept for picture in group)
        )
    )


def _two_names(
    pictures: Sequence[LabeledPicture], near_copies: NearGroups, taxonomy: Taxonomy
) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of near copies, names ignored, that have several taxa: equal hashes first, ids with names."""
    taxa = (taxonomy.taxa[position].scientific_name for position in taxonomy.taxon_of_output)
    names = dict(zip(taxonomy.output_keys, taxa, strict=True))
    found = [
        (
            len({picture.info.perceptual_hash for picture in group}),
            tuple(sorted(f"{picture.picture_id} ({names[picture.label]})" for picture in group)),
        )
        for group in _members(pictures, near_copies.any_name)
        if len({names[picture.label] for picture in group}) > 1
    ]
    return tuple(group for _, group in sorted(found))


def _members(pictures: Sequence[LabeledPicture], group_of: Codes) -> Iterable[list[LabeledPicture]]:
    members: dict[int, list[LabeledPicture]] = {}
    for row in np.flatnonzero(group_of >= 0).tolist():
        members.setdefault(int(group_of[row]), []).append(pictures[row])
    return members.values()


def _notes(near_copies: NearGroups) -> tuple[str, ...]:
    """Returns a note on the near copies that the groups may miss."""
    if not near_copies.num_chained:
        return ()
    return (
        f"Near copies: {near_copies.num_chained:,} chains of near copies were cut because their ends differ too much; "
        f"{int(near_copies.chained.sum()):,} pictures in them may have a near copy in another group.",
    )
