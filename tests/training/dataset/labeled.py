"""Pictures that decode and have a class, for tests that need no files."""

from training.dataset.sources.record import ImageInfo, LabeledPicture, PictureRecord, SourceClass

ROSE = SourceClass(class_id="1", name="Rosa rubra")


def picture(picture_id, label="all:rosa-rubra", plant=ROSE, facts=None, **record):
    """A picture of a source, colon, path; `facts` are fields of its `ImageInfo`, the others of its record."""
    source, _, path = picture_id.partition(":")
    info = {"sha256": "0" * 64, "num_bytes": 1, "width": 80, "height": 64, "perceptual_hash": 0} | (facts or {})
    return LabeledPicture(
        source=source, record=PictureRecord(path=path, plant=plant, **record), label=label, info=ImageInfo(**info)
    )
