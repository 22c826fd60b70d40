"""Whether a word may be Latin: what tells "Quercus suber" from "Common wheat".

The classes of a folder may have scientific or common names, and nothing else says which. A word counts as Latin if it
ends as genera or epithets do; of those that begin a name, English words with such an ending are known. English words
before the name of a plant rarely have one ("bearded", "Chinese", "wild"). A scientific name that is taken
for a common one loses its genus, and `prepare.py` lists it; a common name that is taken for a scientific one makes a
genus that does not exist.
"""

import re
from typing import Final

_DIGITS: Final = "0123456789"  # of generated names
_BOTH: Final = (
    r"a|(?<!o)us|um|is|i|ae|o|x|[aoy]s|[aeo]ns|ceps|ops|oides|odes|ites|ales|[ae]nthes|ipes|on|oe|[eoy]ne|phe"
)
_GENUS_ENDING: Final = re.compile(
    rf"(?:{_BOTH}|amen|aster|acer|piper|papaver|agave|aphne|chne|che|anthe|me|be|getes|ibes)$"
)
_EPITHET_ENDING: Final = re.compile(
    rf"(?:{_BOTH}|color|ior|inor|ajor|[bcgnt]er|pulcher|asper|ifer|ense|stre|ale|are|[bcgt]ile|ele|forme|folle|caule|ande"
    r"|ulce|acre|enne|[rn]ine|ue|ete)$"
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Common in gardens and fields, with an ending that few genera or epithets have.
_LATIN: Final = _words("abies cicer glycine liriope manihot oleander secale zingiber")
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
    """Returns whether all words may be Latin.

    Args:
        genus: A genus, or what stands in its place.
        epithets: The words after it; empty ones are ignored.
    """
    first = genus.lower().rstrip(_DIGITS)
    if first not in _LATIN and (not _GENUS_ENDING.search(first) or {first, first.removesuffix("s")} & _ENGLISH):
        return False
    words = [epithet.lower().rstrip(_DIGITS) for epithet in epithets if epithet]
    return all(word in _LATIN or _EPITHET_ENDING.search(word) for word in words)
