"""Why something is left out: what each code means, and what a person can do about it."""

from typing import Final

import msgspec


class Meaning(msgspec.Struct, frozen=True):
    """A code in words."""

    title: str
    """A few words."""
    explanation: str
    """What is the matter."""
    remedy: str
    """What to do about it."""


# In the order in which a preparation meets them.
MEANINGS: Final[dict[str, Meaning]] = {
    "not_a_plant": Meaning(
        "Not a plant",
        "The data set says that it shows an animal, a fungus or something else that is no plant.",
        "Nothing. If it is a plant after all, correct its kingdom in the data set.",
    ),
    "missing_file": Meaning(
        "File missing",
        "The data set lists it, but the file is not there.",
        "Finish the download or unpack the archive again, then prepare again.",
    ),
    "unreadable_file": Meaning(
        "File cannot be read",
        "The file is there, but the operating system does not let it be read.",
        "Check permissions and the disk, then prepare again.",
    ),
    "not_a_picture": Meaning(
        "Not a picture",
        "It lies among the pictures, but is another kind of file, or a link that leads nowhere.",
        "Nothing, or delete it; a link needs its file.",
    ),
    "unsupported_format": Meaning(
        "Unsupported format",
        "Its bytes are of no accepted format, whatever its name says: often a web page saved in a picture's place.",
        "Download it again; convert a real picture to JPEG, PNG, WebP, HEIC or AVIF.",
    ),
    "unreadable_image": Meaning(
        "Damaged picture",
        "The format is known, but the picture does not decode: cut short or damaged.",
        "Download the file again, or delete it.",
    ),
    "too_many_pixels": Meaning(
        "Too many pixels",
        "It is larger than the limit of its format.",
        "Replace it by a smaller version.",
    ),
    "too_small": Meaning(
        "Too small",
        "Its short side has fewer pixels than min_side_px.",
        "Look for a larger original, or lower min_side_px in the collection.",
    ),
    "copy": Meaning(
        "Exact copy",
        "Another picture has the very same bytes; one of them is enough.",
        "Nothing. Where the two have different names, find out which is right.",
    ),
    "near_copy": Meaning(
        "Near copy across splits",
        "It is almost the same picture as one in a stronger split, on which the network is judged.",
        "Nothing: it would let the network see its exam. Where a reason is wrong, lower near_copy_bits.",
    ),
    "observation_split": Meaning(
        "Observation across splits",
        "It belongs to the same observation as a picture in a stronger split, on which the network is judged.",
        "Nothing: it would let the network see its exam.",
    ),
    "no_pictures": Meaning(
        "Class without pictures",
        "The data set names the class, but no picture of it can be used.",
        "Add pictures, or ignore it: the class gets no output.",
    ),
}
UNKNOWN: Final = Meaning("Other", "See the reason given with each entry.", "See the reason given with each entry.")


def meaning(code: str) -> Meaning:
    """What a code means; one that has no explanation yet is told as such, never hidden."""
    return MEANINGS.get(code, UNKNOWN)
