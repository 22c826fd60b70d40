"""The reasons for leaving pictures out: what each code means, and what a user can do about it."""

from typing import Final

import msgspec


class Meaning(msgspec.Struct, frozen=True):
    """The meaning of a code."""

    title: str
    """A few words."""
    explanation: str
    """What is wrong."""
    remedy: str
    """What to do about it."""


# In the order of the steps that report them.
MEANINGS: Final[dict[str, Meaning]] = {
    "not_a_plant": Meaning(
        "Not a plant",
        "According to the data set it shows an animal, a fungus or something else that is not a plant.",
        "Nothing. If it is a plant, correct its kingdom in the data set.",
    ),
    "missing_file": Meaning(
        "File missing",
        "The data set lists it, but the file does not exist.",
        "Finish the download or unpack the archive again, then prepare again.",
    ),
    "unreadable_file": Meaning(
        "File cannot be read",
        "The file exists, but the operating system cannot read it.",
        "Check permissions and the disk, then prepare again.",
    ),
    "not_a_picture": Meaning(
        "Not a picture",
        "It is among the pictures, but is another kind of file, or a broken link.",
        "Nothing, or delete it. Restore the target of a link.",
    ),
    "unsupported_format": Meaning(
        "Unsupported format",
        "Its bytes are not in an accepted format, whatever its name: often a web page saved instead of a picture.",
        "Download it again. Convert a picture to JPEG, PNG, WebP, HEIC or AVIF.",
    ),
    "unreadable_image": Meaning(
        "Damaged picture",
        "The format is accepted, but the picture does not decode: it is truncated or damaged.",
        "Download the file again, or delete it.",
    ),
    "too_many_pixels": Meaning(
        "Too many pixels",
        "It has more pixels than its format's limit.",
        "Replace it with a smaller version.",
    ),
    "too_small": Meaning(
        "Too small",
        "Its shorter side has fewer than min_side_px pixels.",
        "Find a larger original, or lower min_side_px in the collection.",
    ),
    "copy": Meaning(
        "Exact copy",
        "Another picture has the same bytes; one of them is kept.",
        "Nothing. If the two have different names, find out which one is right.",
    ),
    "near_copy": Meaning(
        "Near copy across splits",
        "It is almost the same picture as one in a stronger split, which the network is measured on.",
        "Nothing: with it the measured accuracy would be too high. If it is not a copy, lower near_copy_bits.",
    ),
    "observation_split": Meaning(
        "Observation across splits",
        "It belongs to the same observation as a picture in a stronger split, which the network is measured on.",
        "Nothing: with it the measured accuracy would be too high.",
    ),
    "no_class": Meaning(
        "Without a class",
        "It lies in the folder of a split, but in no class folder, so it is not known what it shows.",
        "Move it into a class folder, or ignore it: contests keep the labels of their test pictures.",
    ),
    "no_pictures": Meaning(
        "Class without pictures",
        "The data set has the class, but no picture of it can be used.",
        "Add pictures, or ignore it: the class gets no output.",
    ),
}
UNKNOWN: Final = Meaning("Other", "See the reason given with each entry.", "See the reason given with each entry.")


def meaning(code: str) -> Meaning:
    """Returns the meaning of a code; `UNKNOWN` for a code without an entry."""
    return MEANINGS.get(code, UNKNOWN)
