"""How lists write names: with their author, with another author, or misspelt.

The authors are real, because they are the difficult part of parsing a name: initials with and without a space, "f." for
filius (not forma), "ex", "&", accents and apostrophes.
"""

from typing import Final

import numpy as np

from training.herbarium.names import species_name

_AUTHORS_STREAM: Final = 21
_VOWELS: Final = frozenset("aeiou")
# "L." is by far the most frequent author, as in botany.
_LINNAEUS: Final = "L."
_SHARE_OF_LINNAEUS: Final = 0.2
_AUTHORS: Final = (
    "(L.) Mill.", "Mill.", "DC.", "(Burm. f.) Steenis", "Burm. f.", "L.f.", "(L.) L'Hér.", "(L'Hér.) Aiton",
    "Benth.", "Kunth", "Willd.", "Hook.f.", "(Hook. f.) Rolfe", "S. Watson", "Ruiz & Pav.", "(Hack.) Fernald",
    "Siebold ex Miq.", "(Siebold & Zucc.) Planch.", "Buch.-Ham. ex DC.", "(Roxb. ex Ker Gawl.) Druce", "C. Presl",
    "Á.Löve & D.Löve", "N.E.Br.", "(J.J. Wood) P.Delforge", "Bouché", "Medik.", "hort. ex Bosse", "(Lowe) Fraser-Jenk.",
    "P.Gaertn., B.Mey. & Scherb.", "(L.) H.P. Fuchs", "M. Roem.", "Hu & W.C. Cheng",
)  # fmt: skip


def author_of(species: int, seed: int = 0) -> str:
    """Returns the author of a species' name, as cited after the name."""
    rng = np.random.default_rng([seed, _AUTHORS_STREAM, species])
    return _LINNAEUS if rng.uniform() < _SHARE_OF_LINNAEUS else _AUTHORS[int(rng.integers(len(_AUTHORS)))]


def other_spellings(name: str, author: str) -> tuple[str, str]:
    """Returns two more spellings of a name (genus, epithet) with its author.

    The first differs in spaces, in the hybrid sign or in an author before "ex"; the second has another author.
    """
    closed = author.replace(". ", ".").replace(".&", ". &").replace(".ex", ". ex").replace(".(", ". (")
    if " x " in name:
        first = f"{name.replace(' x ', ' × ')} {author}"
    elif " ex " in author and "(" not in author:
        first = f"{name} {author.rpartition(' ex ')[-1]}"
    elif closed != author and " & " not in author:
        first = f"{name} {closed}"
    else:
        first = f"{name}  {author.rstrip('.')}" if "(" in author else f"{name} Vahl ex {author}"
    return first, f"{name} Kuntze"


def misspelt(scientific_name: str) -> str:
    """Doubles one consonant of the epithet: "Rosa alba" -> "Rosa allba"."""
    genus, _, epithet = scientific_name.rpartition(" ")
    for place in range(1, len(epithet)):
        if epithet[place - 1] in _VOWELS and epithet[place] not in _VOWELS:
            return f"{genus} {epithet[:place]}{epithet[place]}{epithet[place:]}"
    return f"{scientific_name}s"


def binomial(species: int, seed: int = 0, *, hybrid: bool = False) -> str:
    """Returns genus and epithet, with an "x" between them for a hybrid."""
    genus, epithet = species_name(species, seed).scientific_name.split()
    return f"{genus} x {epithet}" if hybrid else f"{genus} {epithet}"
