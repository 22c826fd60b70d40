"""Invented scientific names in Latin style, and common names in English style, without repeats.

Names are taken from shuffled lists of all words that the syllables can form. Epithets agree with the gender of their
genus, as in botany.
"""

from functools import lru_cache
from itertools import product
from typing import Final

import msgspec
import numpy as np

from models.errors import InputError
from training.herbarium.traits import (
    SPECIES_PER_FAMILY,
    SPECIES_PER_GENUS,
    check_not_negative,
)

_NAMES_STREAM: Final = 15
_EPITHETS_STREAM: Final = 16
_COMMON_STREAM: Final = 17


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_STARTS = _words(
    "Vel Mar Cal Thor Nim Sol Hel Bryn Cor Dal Fen Gal Hyst Ist Jun Kal Lor Mel Nol Or Pel Quin Ros Sil Tal Ul "
    "Var Wist Xan Yl Zeph Bel Cyn Drav Elm Frit"
)
_MIDDLES = _words("a an ar av e el en er i il in ir o ol om on or u ul un ant ast ell end ess imb ind olv orm umb")
_ENDINGS = ("ia", "ella", "issa", "ora", "antha", "era", "ium", "enum", "erum", "us", "ites", "odon")
_FAMILY_LINKS = ("n", "r", "ll", "v")
# Stems of adjectives in -us, -a, -um.
_STEMS = _words(
    "alb alpin angust argente arvin asper atr aure bland candid cernu clar colorat crisp decor dens divers elat "
    "elegantissim falcat formos glabr hirsut laciniat laev lat long lucid maculat magn magnific maritim mir "
    "montan mut nan nitid nud obscur parv pict plan pulchr pumil punctat pur ripari robust rubr serotin silvatic "
    "spinos stellat strict tinct umbros vag vari venust vern vulgat"
)

_ADJECTIVES = _words(
    "Silver Golden Meadow Marsh Dwarf Giant Nodding Creeping Pale Dusky Early Autumn Mountain Forest River "
    "Coastal Northern Southern Woolly Shining Spotted Hooded Slender Broad Copper Evening Morning Winter "
    "Sweet Tangled Hollow Shaggy Noble Common"
)
_FIRST = _words(
    "Lantern Thimble Ember Wren Otter Plover Harrow Lark Mist Frost Drum Pewter Rook Badger Heron Kettle "
    "Velvet Ribbon Candle Spindle Tinker Miller Weaver Piper Cobble Fiddle Garnet Amber "
    "Opal Quill Saddle Swallow Linnet Marrow Needle Parson Pilgrim Puddle Ramble Sparrow Tumble "
    "Bramble Cinder Dapple Feather Gable Ivory Jester Kestrel Moth Osprey Tallow Thatch Tabor Cricket Lintel "
    "Mallard Bobbin Ferry"
)
_LAST = _words(
    "wort bell cup weed root leaf bane glove cress flax mint star eye lace crown tail foot tongue heart spur balm "
    "blossom button bonnet slipper shade rue sage vetch wand wheel whistle wick thorn thrift tuft sedge poke nod "
    "mallow"
)


class SpeciesName(msgspec.Struct, frozen=True):
    """The names of a species; other species share its `genus` and `family`."""

    scientific_name: str
    common_name: str
    genus: str
    family: str


def species_name(species: int, seed: int = 0) -> SpeciesName:
    """Returns the names of one species.

    Raises:
        InputError: A number is negative, or `species` is too high (above 50,000).
    """
    check_not_negative(species=species, seed=seed)
    return _name_of(species, seed)


@lru_cache(maxsize=1 << 14)  # more than the species of a flora at full width, each of which is requested several times
def _name_of(species: int, seed: int) -> SpeciesName:
    genus_number, member = divmod(species, SPECIES_PER_GENUS)
    genera, families = _word_lists(seed)
    if genus_number >= len(genera):
        limit = f"less than {len(genera) * SPECIES_PER_GENUS}"
        raise InputError("the species number is too high", value=species, limit=limit, remedy="draw fewer species")
    genus = genera[genus_number]
    return SpeciesName(
        scientific_name=f"{genus} {_epithet(genus, genus_number, member, seed)}",
        common_name=_common_name(genus_number, member, seed),
        genus=genus,
        family=families[species // SPECIES_PER_FAMILY],
    )


@lru_cache(maxsize=4)
def _word_lists(seed: int) -> tuple[list[str], list[str]]:
    """Returns all genus names and all family names, in the order of their use."""
    rng = np.random.default_rng([seed, _NAMES_STREAM])
    genera = _distinct(["".join(parts) for parts in product(_STARTS, _MIDDLES, _ENDINGS)])
    families = _distinct(["".join(parts) + "aceae" for parts in product(_STARTS, _MIDDLES, _FAMILY_LINKS)])
    return [genera[k] for k in rng.permutation(len(genera))], [families[k] for k in rng.permutation(len(families))]


def _distinct(words: list[str]) -> list[str]:
    return list(dict.fromkeys(words))


def _epithet(genus: str, genus_number: int, member: int, seed: int) -> str:
    """Returns an adjective that no other member of the genus has, in the gender of the genus."""
    order = np.random.default_rng([seed, _EPITHETS_STREAM, genus_number]).permutation(len(_STEMS))
    ending = {"a": "a", "m": "um"}.get(genus[-1], "us")
    return f"{_STEMS[order[member]]}{ending}"


def _common_name(genus_number: int, member: int, seed: int) -> str:
    """Returns adjective and noun: members of a genus share the noun, no two species share both."""
    num_nouns = len(_FIRST) * len(_LAST)
    again, noun = divmod(genus_number, num_nouns)
    noun = int(_common_order(seed, num_nouns)[noun])
    adjectives = np.random.default_rng([seed, _COMMON_STREAM, noun]).permutation(len(_ADJECTIVES))
    adjective = _ADJECTIVES[adjectives[again * SPECIES_PER_GENUS + member]]
    return f"{adjective} {_FIRST[noun // len(_LAST)]}{_LAST[noun % len(_LAST)]}"


@lru_cache(maxsize=4)
def _common_order(seed: int, count: int) -> list[int]:
    return [int(k) for k in np.random.default_rng([seed, _COMMON_STREAM]).permutation(count)]
