"""Byte-for-byte copies, over all sources."""

from collections.abc import Mapping, Sequence
from typing import Final

from training.dataset.labeled_picture import LabeledPicture
from training.dataset.sources.record import LeftOut, Split

# Of equal pictures, the one in the first of these splits is kept. None, no published split, comes before "train" since
# such a picture may still become a test picture.
_PRECEDENCE: Final[dict[Split | None, int]] = {"test": 0, "validation": 1, "calibration": 2, None: 3, "train": 4}


def drop_copies(
    pictures: Sequence[LabeledPicture], taxon_of_label: Mapping[str, str]
) -> tuple[list[LabeledPicture], list[LeftOut]]:
    """Leaves out byte-for-byte copies.

    Of equal files one is kept: by published split, in the order test, validation, calibration, none, train; within a
    split, the one with the smallest `picture_id`.

    Args:
        pictures: The pictures of all sources.
        taxon_of_label: Output key -> taxon. The reason says so if the copies have different taxa.

    Returns:
        The pictures that are kept, and the other copies, both in the order given.
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
    return _PRECEDENCE[picture.record.split], picture.picture_id


def _reason(copy: LabeledPicture, original: LabeledPicture, taxon_of_label: Mapping[str, str]) -> str:
    same = f"the same bytes as {original.picture_id}"
    if taxon_of_label[copy.label] == taxon_of_label[original.label]:
        return same
    return f"{same}, but labeled {copy.label} here and {original.label} there"
