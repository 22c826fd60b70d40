"""Byte-for-byte copies, over all sources."""

from collections.abc import Mapping, Sequence
from typing import Final

from training.dataset.labeled_picture import LabeledPicture
from training.dataset.sources.record import LeftOut, Split

# Of equal pictures the one stays that the most is judged by; one whose split is still to be drawn may become any.
_STRENGTH: Final[dict[Split | None, int]] = {"test": 0, "validation": 1, "calibration": 2, None: 3, "train": 4}


def drop_copies(
    pictures: Sequence[LabeledPicture], taxon_of_label: Mapping[str, str]
) -> tuple[list[LabeledPicture], list[LeftOut]]:
    """Leaves out byte-for-byte copies.

    Of equal pictures the one in the strongest published split stays: test, validation, calibration, none, train; then
    the one with the least `picture_id`.

    Args:
        pictures: Of all sources.
        taxon_of_label: Output key -> taxon: a copy under another plant's name is told as such.

    Returns:
        The pictures that stay, and those that do not, both in the order given.
    """
    originals: dict[str, LabeledPicture] = {}
    for picture in pictures:
        known = originals.setdefault(picture.info.sha256, picture)
        if known is not picture and _precedence(picture) < _precedence(known):
            originals[picture.info.sha256] = picture
    kept: list[LabeledPicture] = []
    copies: list[LeftOut] = []
    for picture in pictures:
        original = originals[picture.info.sha256]
        if picture is original:
            kept.append(picture)
        else:
            copies.append(
                LeftOut(picture=picture.picture_id, code="copy", reason=_reason(picture, original, taxon_of_label))
            )
    return kept, copies


def _precedence(picture: LabeledPicture) -> tuple[int, str]:
    return _STRENGTH[picture.record.split], picture.picture_id


def _reason(copy: LabeledPicture, original: LabeledPicture, taxon_of_label: Mapping[str, str]) -> str:
    same = f"the same bytes as {original.picture_id}"
    if taxon_of_label[copy.label] == taxon_of_label[original.label]:
        return same
    return f"{same}, but labelled {copy.label} here and {original.label} there"
