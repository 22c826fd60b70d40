"""Names that people write -> taxa: whole names, names that begin with the text, and a choice of several names.

A name is that of a species or another accepted name, a synonym, a common name, a genus or a family. Case, accents, the
hybrid sign and repeated spaces do not matter: "mentha x piperita" is "Mentha × piperita".
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from models.taxonomy import Taxon, Taxonomy, fold

NameKind = Literal["genus", "family", "accepted", "synonym", "common"]
"""What a name is to a taxon."""
MatchKind = Literal["genus", "family", "accepted", "synonym", "common", "prefix"]
"""The same, or "prefix": a word of the name starts with the text."""

# A text that is several of these means the first: "Geranium" is the genus, although a Pelargonium has that common name.
# The genus precedes the accepted name, because a taxon of rank genus has the genus as its accepted name.
_KINDS: Final[tuple[NameKind, ...]] = ("genus", "family", "accepted", "synonym", "common")
_SAME: Final = str.maketrans({"×": " x ", "’": "'"})


class NameMatch(msgspec.Struct, frozen=True):
    """Why a taxon was found."""

    kind: MatchKind
    """What the name is to the taxon."""
    name: str
    """The name as the taxonomy writes it."""


class KnownName(msgspec.Struct, frozen=True):
    """What a whole name means."""

    match: NameMatch
    taxa: npt.NDArray[np.intp]
    """Positions of its taxa in `Taxonomy.taxa`: all taxa of a genus or family, all that share the name otherwise."""


class FoundTaxon(msgspec.Struct, frozen=True):
    """A taxon that a search found; `match` is None if the search text was empty."""

    taxon: Taxon
    match: NameMatch | None


class TaxaChoice(msgspec.Struct, frozen=True):
    """The taxa that several names mean together."""

    chosen_T: npt.NDArray[np.bool_]
    """Whether each taxon is chosen, in the order of `Taxonomy.taxa`."""
    unknown: tuple[str, ...]
    """The names that mean no taxon."""


class TaxonNames:
    """The names of all taxa of a taxonomy, folded once: 5,337 taxa take a fifth of a second."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self.taxonomy = taxonomy
        # Folded name -> kind, name as written, and position of each taxon that has it.
        self._meanings: dict[str, list[tuple[NameKind, str, int]]] = {}
        words: list[tuple[Taxon, str]] = []
        for position, taxon in enumerate(taxonomy.taxa):
            folded = [(kind, name, fold_name(name)) for kind, name in _names(taxon)]
            for kind, name, key in folded:
                self._meanings.setdefault(key, []).append((kind, name, position))
            # A space precedes every word.
            words.append((taxon, "".join(f" {key}\n" for _, _, key in folded)))
        self._words = sorted(words, key=lambda each: each[0].scientific_name)

    def find(self, text: str) -> KnownName | None:
        """Finds what a whole name means.

        If the text is a name of several kinds, it means the first of genus, family, accepted name, synonym and
        common name.

        Returns:
            None if no taxon has exactly this name.
        """
        meanings = self._meanings.get(fold_name(text))
        if meanings is None:
            return None
        first, name, _ = min(meanings, key=lambda each: _KINDS.index(each[0]))
        positions = [position for kind, _, position in meanings if kind == first]
        return KnownName(NameMatch(first, name), np.unique(np.array(positions, dtype=np.intp)))

    def choose(self, names: Iterable[str]) -> TaxaChoice:
        """Chooses all taxa that any of the names means."""
        chosen_T = np.zeros(len(self.taxonomy.taxa), dtype=np.bool_)
        unknown = []
        for name in dict.fromkeys(names):
            known = self.find(name)
            if known is None:
                unknown.append(name)
            else:
                chosen_T[known.taxa] = True
        return TaxaChoice(chosen_T, tuple(unknown))

    def search(self, text: str, limit: int = 20) -> list[FoundTaxon]:
        """Finds taxa with a name of which a word starts with the text; empty text finds every taxon.

        Args:
            text: Text to look for.
            limit: Maximum number of taxa to return.

        Returns:
            Taxa sorted by scientific name.
        """
        wanted = fold_name(text)
        found = [taxon for taxon, words in self._words if f" {wanted}" in words][:limit]
        return [FoundTaxon(taxon, _match(taxon, wanted) if wanted else None) for taxon in found]


def fold_name(text: str) -> str:
    """Normalizes a name for comparison: no accents, no case, single spaces, no hybrid sign."""
    words = fold(text.translate(_SAME)).split()
    return " ".join([word for word in words if word != "x"] or words)


def _match(taxon: Taxon, wanted: str) -> NameMatch:
    """Gives the first name of a taxon that is the text, else the first with a word that starts with it.

    Of the names that start with it, those of the taxon itself precede those of its genus and family.
    """
    named = [(kind, name, fold_name(name)) for kind, name in _names(taxon)]
    whole = [NameMatch(kind, name) for kind, name, key in named if key == wanted]
    starting = [(kind, name) for kind, name, key in named if f" {wanted}" in f" {key}"]
    return whole[0] if whole else NameMatch("prefix", min(starting, key=lambda each: each[0] in {"genus", "family"})[1])


def _names(taxon: Taxon) -> Iterable[tuple[NameKind, str]]:
    """Gives all names of a taxon, in the order of `_KINDS`."""
    if taxon.genus:
        yield "genus", taxon.genus
    if taxon.family:
        yield "family", taxon.family
    yield "accepted", taxon.scientific_name
    yield from (("synonym", name) for name in taxon.synonyms)
    yield from (("common", name) for name in taxon.common_names)
