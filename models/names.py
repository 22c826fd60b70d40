"""Written names: their parts, and a key that all spellings of a name share.

"Mazus pumilus (Burm. f.) Steenis", "Mazus  pumilus" and "MAZUS PUMILUS" have the key "mazus pumilus". The rules are
those of the International Code of Nomenclature for algae, fungi, and plants (the ICN, Shenzhen Code 2018), as far as
written names follow them: a genus, an epithet in lower case, an author. A text that does not parse, or whose words
cannot be Latin, is a common name, kept whole and unchanged, so that two names are never merged because a part of each
was ignored, and share no genus because they begin with the same word.
"""

import gzip
import html
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Final, Literal

import msgspec

Rank = Literal["species", "genus"]

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
    """Returns whether a genus, or what stands in its place, and the words after it may be a scientific name."""
    first = _ascii(genus).rstrip(_DIGITS)
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


OLDER_FAMILIES: Final = {
    "Apiaceae": "Umbelliferae",
    "Arecaceae": "Palmae",
    "Asteraceae": "Compositae",
    "Brassicaceae": "Cruciferae",
    "Clusiaceae": "Guttiferae",
    "Fabaceae": "Leguminosae",
    "Lamiaceae": "Labiatae",
    "Poaceae": "Gramineae",
}
"""Family -> its other name (ICN article 18.5)."""
# ICN articles 16 to 19.
_ABOVE_GENUS: Final = re.compile(
    r"\w{2,}(?:aceae|oideae|eae|inae|ales|ineae|anae|idae|opsida|phyta|phytina)|Plantae|Angiospermae|Life"
    rf"|{'|'.join(OLDER_FAMILIES.values())}"
)


def is_above_genus(word: str) -> bool:
    """Returns whether a single word is the name of a tribe, family or other rank above the genus: "Cichorieae".

    Genera with such an ending, such as Danae and Xerophyta, are listed.
    """
    name = word.capitalize()
    return bool(_ABOVE_GENUS.fullmatch(name)) and name not in genus_families()


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


_HYBRID_SIGNS: Final = _words("× x X +")  # "+" marks a graft-chimaera
_APOSTROPHES: Final = dict.fromkeys('‘’´`“”"', "'")
_DASHES: Final = dict.fromkeys("‐‑–", "-")
# Soft hyphen, spaces without width, byte order mark.
_INVISIBLE: Final = dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff")
_SPACES: Final = dict.fromkeys("_*?†\ufffd", " ")
_SPELLING: Final = str.maketrans({**_APOSTROPHES, **_DASHES, **_INVISIBLE, **_SPACES, "×": " × ", "✕": " × "})
_TAG: Final = re.compile(r"</?[A-Za-z]+>")
# ICN article 60.7: these letters in a Latin name; all other marks are dropped.
_LETTERS: Final = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "æ": "ae", "œ": "oe", "ø": "oe", "å": "ao", "ł": "l"})
_RANK_WORDS: Final = {
    "subsp.": "subsp ssp subspecies",
    "var.": "var variety varietas",
    "subvar.": "subvar subvariety",
    "convar.": "convar convariety",
    "f.": "f fo form forma",
    "subf.": "subf subform subforma",
}
_RANKS: Final = {
    f"{prefix}{word}": rank for rank, words in _RANK_WORDS.items() for word in words.split() for prefix in ("", "notho")
}
_CULTIVAR: Final = "cv."
_GROUPS: Final = {"group": "Group", "gp": "Group", "grex": "Grex", "gx": "Grex"}  # ICNCP articles 3 and 4
# "cf." marks the likely species; "agg.", "gr." and "s.l." the species in a wide sense.
_QUALIFIERS: Final = _words("cf. cf agg. agg aggr. aggr gr. s.l. s.lat. s.str.")
_WIDE_SENSE: Final = frozenset({*_GROUPS, "aggregate", "complex"})
# After a genus these words name a part of it.
_PARTS: Final = _words("sect section subsect subsection subg subgen subgenus ser series subser")
# They name no species; "aff." means "near that species", so not that species.
_NO_SPECIES: Final = _PARTS | _words("sp spp spec esp hybrid hybrids cultivar cultivars hyb aff indet")
# The same in words that common names have too.
_NO_SPECIES_IN_WORDS: Final = _WIDE_SENSE | _words("species family subfamily tribe subtribe order")
# Words in lower case that occur in author citations, and are not epithets.
_CONNECTIVES: Final = _words(
    "ex et in and non nec apud pro sensu auct auctt hort emend nom al f fil "
    "de des du da das do dos del della di la le van von der den ter ten zu zur vom zum y e"
)
# Words of author citations that are also epithets: Pelargonium × hortorum, Psilotum nudum.
_CITATION_WORDS: Final = _CONNECTIVES | _words("auctorum hortorum latissimo lato nomen nudum parte stricto")
_NO_EPITHETS: Final = _CONNECTIVES | _RANKS.keys() | _words("of the or with on")


class PlantName(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed name."""

    genus: str
    """Genus, capitalized; for a common name the whole phrase, as written."""
    epithet: str = ""
    """Specific epithet, empty if no species is named; for a hybrid formula the rest of it ("alba × fragilis")."""
    part_of_genus: str = ""
    """A section or another part of the genus, if one is named and no species: "sect. Caninae"."""
    infraspecific_rank: str = ""
    """Such as "subsp.", "var.", "f.", "Group" or, for a cultivar, "cv."; empty if a third word has no rank."""
    infraspecific_epithet: str = ""
    """The lowest epithet, or the name of a cultivar or Group."""
    author: str = ""
    """As written."""
    nothogenus: bool = False
    """Whether a hybrid sign precedes the genus."""
    nothospecies: bool = False
    """Whether a hybrid sign precedes the epithet."""
    common: bool = False
    """Whether the text cannot be read as a scientific name."""

    @property
    def hybrid(self) -> bool:
        """Whether the name has a hybrid sign."""
        return self.nothogenus or self.nothospecies

    @property
    def rank(self) -> Rank:
        """Species if one is named, else genus; a common name may mean several species of a genus that is given."""
        return "species" if self.epithet else "genus"

    @property
    def above_genus(self) -> bool:
        """Whether the name is that of a family, a tribe or another rank above the genus: "Asteraceae sp."."""
        return not self.epithet and is_above_genus(self.genus)

    @property
    def infraspecific(self) -> str:
        """The part below the species, such as "subsp. minima"; empty if there is none."""
        parts = self.infraspecific_rank, self.infraspecific_epithet
        return " ".join(parts[::-1] if parts[0] in _GROUPS.values() else parts).strip()

    @property
    def key(self) -> str:
        """Equal for all spellings of the name: lower case, ASCII, no author, no hybrid sign."""
        return _ascii(" ".join(part for part in (self.genus, self.epithet, self.infraspecific) if part))

    @property
    def keys(self) -> tuple[str, str]:
        """The key, and the same without the rank of a subspecies, variety or form."""
        is_cultivar = self.infraspecific_rank == _CULTIVAR
        return self.key, self.key if is_cultivar else self.key.replace(f" {self.infraspecific_rank} ", " ")

    @property
    def species(self) -> "PlantName":
        """The name without what is below the species; for a cultivar of a genus the genus."""
        return msgspec.structs.replace(self, infraspecific_rank="", infraspecific_epithet="")

    @property
    def scientific_name(self) -> str:
        """For display, without author: "Fragaria × ananassa", "Viola tricolor subsp. minima", "Rosa 'Peace'"."""
        below = self.infraspecific
        if self.infraspecific_rank == _CULTIVAR:
            below = f"'{self.infraspecific_epithet}'"
        parts = ("×" * self.nothogenus, self.genus, "×" * self.nothospecies, self.epithet, below)
        return " ".join(part for part in parts if part)


def parse_name(text: str, *, scientific: bool = False) -> PlantName:
    """Parses a name.

    Ambiguous texts: a capitalized second word without the marks of an author (a period, brackets, "ex", "&") makes
    a common name ("Venus Flytrap", and also "Monstera Deliciosa"), unless the whole text is in capitals or `scientific`
    is set. Words that cannot be Latin make a common name too ("Peace lily", "Maize"), unless an author, a hybrid sign
    or "spp." marks the text or `scientific` is set. A common name keeps all its words in the key, so that the key is
    the same in both cases unless there is an author, a rank or a cultivar.

    Args:
        text: With or without author, hybrid sign, ranks, "spp."; underscores and unusual spaces count as spaces.
        scientific: The text is known to be a scientific name, because its data set says so, or because a common name is
            given beside it.
    """
    words = _split_words(text)
    name = _parse_scientific(words, scientific)
    if name is None or not (scientific or _is_marked(name, words) or _may_be_latin(name)):
        phrase = " ".join(word for word in words if word.lower().rstrip(".") not in {"sp", "spp"})
        return PlantName(genus=phrase[:1].upper() + phrase[1:], common=True)
    return name


def split_class_name(name: str) -> tuple[str, str]:
    """Splits the name of a class folder.

    Returns:
        Scientific and common name. "Sunflower (Helianthus annuus)" gives both; any other name is returned as the
        scientific name, also "Rosa (red)", "Corn (maize)" and "Acacia caven (Molina)", which has an author.
    """
    plain = name.replace("_", " ").strip()
    common, scientific = (part.strip() for part in split_brackets(plain))
    if " " in scientific or may_be_latin(scientific):
        has_author = parse_name(common).epithet and parse_name(plain).epithet
        if not has_author:
            return scientific, common
    return plain, ""


def without_number(folder: str) -> str:
    """Returns the name of a class folder without its number: "001_quercus_suber" -> "quercus_suber"."""
    return _FOLDER_NUMBER.sub("", folder)


def split_brackets(folder: str) -> tuple[str, str]:
    """Splits the name of a class folder: "Oak (Quercus)" -> "Oak", "Quercus"; without brackets the second one is ""."""
    found = _WITH_BRACKETS.fullmatch(folder)
    return (found[1], found[2]) if found else (folder, "")


# "1. Quercus suber", "001_quercus_suber", "2 Salix alba", but not "4 o'clock" or "3-leaved ivy".
_FOLDER_NUMBER: Final = re.compile(r"^\d+(?:\s*[._)]\s*|[\s-]+(?=[A-Z×]))(?=\D)")
_WITH_BRACKETS: Final = re.compile(r"(.+?)\s*\(((?:[^()]|\([^()]*\))+)\)")


def fold_name(text: str) -> str:
    """Normalizes a name for comparison: no accents, no case, single spaces, no hybrid sign."""
    words = fold(_spelt_plainly(text)).split()
    return " ".join([word for word in words if word not in {"x", "×"}] or words)


def fold(text: str) -> str:
    """Normalizes text for a search: no accents, no case, single spaces."""
    if not text.isascii():
        plain = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in plain if not unicodedata.combining(char))
    return " ".join(text.casefold().split())


def _spelt_plainly(text: str) -> str:
    """Returns the text without HTML and outer quotes, with one kind of quotes, dashes and spaces."""
    plain = unicodedata.normalize("NFC", _TAG.sub("", html.unescape(text))).translate(_SPELLING)
    plain = " ".join(plain.split()).strip(" ,;-•·")
    return plain[1:-1] if len(plain) > 1 and plain[0] == plain[-1] == "'" else plain


def _split_words(text: str) -> list[str]:
    """Returns the words in uniform spelling; a text in capitals becomes lower case, except for recognizable authors."""
    words = [word for word in _spelt_plainly(text).split() if word.lower() not in _QUALIFIERS]
    plain = " ".join(word for word in words if word not in _HYBRID_SIGNS)
    if " " in plain and plain.isupper():
        return [word if {".", ","} & {*word} else word.lower() for word in words]
    return words


def _parse_scientific(words: Sequence[str], scientific: bool) -> PlantName | None:
    """Parses genus, epithet and so on from left to right; returns None if the text is not a scientific name."""
    words, nothogenus = _take_hybrid_sign(words)
    words, (rank_of_cultivar, cultivar) = _take_cultivar(words)
    if not words or not _is_word(words[0]):
        return None
    rest = words[1:]
    name = PlantName(
        genus=_ascii(words[0]).capitalize(),
        infraspecific_rank=rank_of_cultivar,
        infraspecific_epithet=cultivar,
        nothogenus=nothogenus,
    )
    if not rest or _names_no_species(rest):
        part = " ".join(rest) if len(rest) > 1 and rest[0].lower().rstrip(".") in _PARTS else ""
        return msgspec.structs.replace(name, part_of_genus=part)
    if _is_epithet(plain := rest[0].rstrip(".,")):  # "Helianthus annuus."
        rest = [plain, *rest[1:]]
    is_family = is_above_genus(name.genus) and rest[0] not in genus_families()  # "Asteraceae Martinov"
    if (is_family or _opens_author(rest)) and _is_author(rest):
        return msgspec.structs.replace(name, author=" ".join(rest))
    rest, nothospecies = _take_hybrid_sign(rest)
    epithet, *rest = rest
    if scientific and epithet[0].isupper():
        epithet = epithet.lower()
    if not _is_epithet(epithet):
        return None
    if not _HYBRID_SIGNS.isdisjoint(rest):  # a formula, which names the parents
        formula = " ".join("×" if word in _HYBRID_SIGNS else word for word in [epithet, *rest])
        return msgspec.structs.replace(name, epithet=formula)
    (rank, below), author = _take_infraspecific(rest)
    if not _is_author(author):
        return None
    return msgspec.structs.replace(
        name,
        epithet=epithet,
        infraspecific_rank=rank_of_cultivar or rank,
        infraspecific_epithet=cultivar or below,
        author=" ".join(author),
        nothospecies=nothospecies,
    )


def _is_marked(name: PlantName, words: Sequence[str]) -> bool:
    """Returns whether a name has what only scientific names have: "(Burm.", "L.", "×", "spp."."""
    follows = words[1].lower().rstrip("0123456789.") if len(words) > 1 else ""
    return name.hybrid or _opens_author(name.author.split() or [" "]) or follows in _NO_SPECIES


def _may_be_latin(name: PlantName) -> bool:
    is_cultivar = name.infraspecific_rank in {_CULTIVAR, *_GROUPS.values()}
    return may_be_latin(name.genus, name.epithet.partition(" ")[0], "" if is_cultivar else name.infraspecific_epithet)


def _take_hybrid_sign(words: Sequence[str]) -> tuple[Sequence[str], bool]:
    """Returns the words without a leading hybrid sign (also as in "xCitrofortunella"), and whether there was one."""
    if len(words) > 1 and words[0] in _HYBRID_SIGNS:
        return words[1:], True
    if words and words[0][0] == "x" and words[0][1:2].isupper():
        return [words[0][1:], *words[1:]], True
    return words, False


def _take_cultivar(words: Sequence[str]) -> tuple[Sequence[str], tuple[str, str]]:
    """Returns the words without cultivar and Group, and its rank and name: 'Peace' (unlike the author 't Hart)."""
    for start, word in enumerate(words[1:], start=1):
        if word.lower() in {"cv.", "cv", "cultivar"} and start + 1 < len(words):
            return words[:start], (_CULTIVAR, " ".join(words[start + 1 :]).strip("'"))
        if word[0] == "'" and word[1:2].isalnum() and not word[1:2].islower():
            for end in range(start, len(words)):
                if words[end].endswith("'"):
                    name = " ".join(words[start : end + 1]).strip("'")
                    return _take_cultivar([*words[:start], *words[end + 1 :]])[0], (_CULTIVAR, name)
    for end, word in enumerate(words[2:], start=2):
        kind = word.lower().strip("().")
        if kind in _GROUPS and (start := _start_of_group(words, end)) < end:
            name = " ".join(words[start:end]).lstrip("(")
            name = " ".join(word[:1].upper() + word[1:] for word in name.split())
            return [*words[:start], *words[end + 1 :]], (_GROUPS[kind], name)
        if kind in _WIDE_SENSE:
            return [*words[:end], *words[end + 1 :]], ("", "")
    return words, ("", "")


def _start_of_group(words: Sequence[str], end: int) -> int:
    """Returns where the name of a Group starts: words in capitals, or one in lower case after an epithet."""
    start = end
    while start > 1 and words[start - 1][0].isupper() and "." not in words[start - 1]:
        start -= 1
    before = words[start - 1]
    opens = before[0] == "(" and before[-1] != ")"
    return start - (opens or (start == end > 2 and before.islower() and "." not in before))


def _take_infraspecific(words: Sequence[str]) -> tuple[tuple[str, str], Sequence[str]]:
    """Returns rank and epithet below the species, and the author.

    "f." means forma only before an epithet; in "Baker f. ex Harms" it is filius, the son. The lowest of several ranks
    counts. A third word in lower case without a rank is a subspecies, as in zoology.
    """
    for start in range(len(words) - 2, -1, -1):
        rank = _RANKS.get(words[start].lower().rstrip("."))
        if rank and _is_epithet(words[start + 1]):
            return (rank, words[start + 1]), words[start + 2 :]
    if words and _is_epithet(words[0]):
        return ("", words[0]), words[1:]
    return ("", ""), words


def _names_no_species(words: Sequence[str]) -> bool:
    """Returns whether the words after the genus name no species: "spp.", "sp. 1", "sect. Caninae", a bare "ssp."."""
    first = words[0].lower().rstrip("0123456789.")
    return first in _NO_SPECIES | _NO_SPECIES_IN_WORDS or (len(words) == 1 and first in _RANKS)


def _is_word(word: str) -> bool:
    """Returns whether a word has only letters, hyphens and, after the first character, digits (generated names)."""
    return word[0].isalpha() and word.replace("-", "").isalnum()


def _is_epithet(word: str) -> bool:
    return len(word) > 1 and _is_word(word) and word.islower() and word not in _NO_EPITHETS


def _opens_author(words: Sequence[str]) -> bool:
    """Returns whether the word after a genus must begin an author: "L.", "(Burm.", "Schott ex Endl.", not "Flytrap"."""
    first = words[0]
    is_lower = first.islower() and len(first) > 2 and first.partition(".")[0] not in _CITATION_WORDS
    marked = (
        ("." in first and not is_lower)
        or first[0] == "("
        or first.endswith(",")
        or (len(first) == 1 and first.isupper())
    )
    followed = first[0].isupper() and len(words) > 1 and words[1] in {"ex", "&", "et"}
    return (marked or followed) and first not in _HYBRID_SIGNS


def _is_author(words: Sequence[str]) -> bool:
    """Returns whether every word may be part of an author citation; plain words in lower case may not."""
    plain = [word.strip("()[],;&") for word in words]
    return all(word.lower() in _CITATION_WORDS or not word.islower() or "." in word or word[0] == "'" for word in plain)


def _ascii(text: str) -> str:
    """Returns the text in lower case without diacritics, with the letters that the ICN prescribes."""
    lower = text.lower()
    if lower.isascii():
        return lower
    plain = fold(lower.replace("×", "x").translate(_LETTERS))
    return "".join(char for char in plain if char.isascii() or char.isalpha())
