"""The columns of a manifest whose pictures are separate files."""

from collections.abc import Sequence
from typing import Any

from training.dataset.audit.licenses import license_id
from training.dataset.labeled_picture import LabeledPicture
from training.dataset.sources.record import Split


def manifest_columns(
    pictures: Sequence[LabeledPicture], splits: Sequence[Split], groups: Sequence[str]
) -> dict[str, Sequence[Any]]:
    """Returns the columns for `write_manifest`.

    Args:
        pictures: The picture of each row.
        splits: Split of each picture.
        groups: Name of each picture's group.
    """
    records, infos = [picture.record for picture in pictures], [picture.info for picture in pictures]
    license_ids = {text: license_id(text) for text in {record.license for record in records}}
    unknown = (None, None)
    return {
        "picture_id": [picture.picture_id for picture in pictures],
        "source": [picture.source for picture in pictures],
        "path": [record.path for record in records],
        "shard": [""] * len(pictures),
        "offset": [0] * len(pictures),
        "length": [info.num_bytes for info in infos],
        "label": [picture.label for picture in pictures],
        "split": splits,
        "group": groups,
        "licence": [license_ids[record.license] for record in records],
        "author": [record.author for record in records],
        "taken_on": [record.taken_on for record in records],
        "latitude": [(record.coordinates or unknown)[0] for record in records],
        "longitude": [(record.coordinates or unknown)[1] for record in records],
        "sha256": [info.sha256 for info in infos],
        "width": [info.width for info in infos],
        "height": [info.height for info in infos],
    }
