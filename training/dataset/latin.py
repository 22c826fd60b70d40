"""Whether a text may be a scientific name, and the family of a genus, by a list of 31,004 genera.

The classes of a folder may have scientific or common names, and nothing else says which: "Quercus robur" or "Common
wheat". A name is scientific if it begins with a listed genus. If the genus is not listed (new, invented, misspelt), a
second word must follow, and both must end as Latin words do; English words before the name of a plant rarely do so
("bearded", "Chinese", "wild"). A scientific name that is taken for a common one loses its genus, and `prepare.py` lists
it; a common name that is taken for a scientific one makes a genus that does not exist.

The list joins the genera of The Plant List and of Kew, with families after APG. A few are wrong or synonyms, so what a
data set says of its plants comes before it.
"""

import gzip
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Final

_DIGITS: Final = "0123456789"  # of generated names
_BOTH: Final = (
    r"a|(?<!o)us|um|is|i|ae|o|x|[aoy]s|[aeo]ns|ceps|ops|oides|odes|ites|ales|[ae]nthes|ipes|on|oe|[eoy]ne|phe"
)
_GENUS_ENDING: Final = re.compile(rf"(?:{_BOTH})$")
_EPITHET_ENDING: Final = re.compile(
    rf"(?:{_BOTH}|color|ior|inor|ajor|[bcgnt]er|pulcher|asper|ifer|ense|stre|ale|are|[bcgt]ile|ele|forme|folle|caule|ande"
    r"|ulce|acre|enne|[rn]ine|ue|ete)$"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# English words that follow a genus in common names, such as "Begonia leaf" and "Rosa red".
_AFTER_GENUS: Final = _words(
    "black blue bush cactus fern flower flowers grass green leaf leaves lily orange palm pink plant plants purple red "
    "seedling shrub tree trees vine weed white wood yellow"
)
# Words that common names begin with, or consist of, with an ending that many genera have.
_ENGLISH: Final = _words(
    "acerola alfalfa avocado bamboo banana bean boston box broccoli buffalo button cactus california canada carambola "
    "carnation carolina cassava celeriac cherimoya chia chickpea chili chilli china christmas cinnamon cocoa coffee "
    "cola common cotton crimson cucumber dandelion dragon flax florida frangipani guava gum home horn iron jalapeno "
    "jicama kale kava kiwi kohlrabi lemon lima lime lion london maca mango melon moon muscadine mushroom okra onion "
    "oregano papaya paprika papyrus pea persimmon pitaya plum potato quinoa radicchio rex saffron sea snapdragon some "
    "soya stone sweetpotato tapioca taro tea texas thyme tiger tobacco tomato two venus virginia watermelon wax "
    "zucchini"
)


def may_be_latin(genus: str, *epithets: str) -> bool:
    """Returns whether the words may be a scientific name.

    Args:
        genus: A genus, or what stands in its place.
        epithets: The words after it; empty ones are ignored.
    """
    first = genus.lower().rstrip(_DIGITS)
    words = [epithet.lower().rstrip(_DIGITS) for epithet in epithets if epithet]
    if {first, first.removesuffix("s")} & _ENGLISH:
        return False
    if first.capitalize() in genus_families():
        return _AFTER_GENUS.isdisjoint(words)
    return bool(words and _GENUS_ENDING.search(first)) and all(_EPITHET_ENDING.search(word) for word in words)


@cache
def genus_families() -> Mapping[str, str]:
    """Returns genus -> family of the listed genera."""
    table = gzip.decompress((Path(__file__).parent / "genus_family.csv.gz").read_bytes()).decode()
    return dict(line.split(",") for line in table.splitlines()[1:])


def similar_genera(genus: str) -> list[str]:
    """Returns the listed genera that differ from an unlisted one by a letter, or by two letters that changed places."""
    if not genus.isalpha() or genus in genus_families():
        return []
    halves = [(genus[:cut], genus[cut:]) for cut in range(len(genus) + 1)]
    edits = {f"{left}{right[1:]}" for left, right in halves}
    edits |= {f"{left}{right[1:2]}{right[:1]}{right[2:]}" for left, right in halves}
    edits |= {
        f"{left}{letter}{rest}" for left, right in halves for letter in ascii_lowercase for rest in (right, right[1:])
    }
    return sorted({edit.capitalize() for edit in edits} & genus_families().keys())
