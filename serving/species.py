"""The JSON records of `/species`, and what a search says in words.

Fields may be added, but never renamed or removed.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from models.taxonomy import FoundTaxon, KnownName, MatchKind, Rank, Taxon, TaxonNames

SpeciesStatus = Literal["known", "synonym", "not_in_model"]
_NUM_NAMED: Final = 3  # taxa that a message names


class NameMatchView(msgspec.Struct, frozen=True):
    """Why a taxon was found."""

    kind: MatchKind
    """What the query is to the taxon: its accepted name, a synonym, a common name, its genus or family; or the start of
    a word of a name (prefix)."""
    name: str
    """The name that the query matches, as the model writes it."""


class SpeciesEntry(msgspec.Struct, frozen=True):
    """A taxon that the model can name."""

    taxon_id: str
    rank: Rank
    scientific_name: str
    common_names: tuple[str, ...]
    genus: str
    """Empty for a class that is known by its common name alone."""
    family: str
    """Empty if unknown."""
    gbif_id: int | None
    """Key in the GBIF backbone taxonomy, if known."""
    match: NameMatchView | None
    """Why it was found; null if the query was empty."""


class SpeciesList(msgspec.Struct, frozen=True):
    """Taxa found by name, sorted by scientific name."""

    request_id: str
    species: list[SpeciesEntry]
    total: int
    """How many taxa the model can name."""
    status: SpeciesStatus | None
    """Whether the query is a whole name that the model knows: `known` (an accepted or common name, genus or family), a
    `synonym`, or `not_in_model`; null if it is empty or only the start of names."""
    message: str | None
    """The status as a sentence; null if the query is empty."""
    warnings: list[str]
    """A sentence for each part of the request that was ignored."""


class SpeciesDetail(msgspec.Struct, frozen=True):
    """A taxon that the model can name, with everything that the model knows about it."""

    request_id: str
    taxon_id: str
    rank: Rank
    scientific_name: str
    author: str
    """Author of the accepted name; empty if unknown."""
    synonyms: tuple[str, ...]
    """Other scientific names of the taxon."""
    common_names: tuple[str, ...]
    genus: str
    """Empty for a class that is known by its common name alone."""
    family: str
    """Empty if unknown."""
    gbif_id: int | None
    """Key in the GBIF backbone taxonomy, if known."""
    num_calibration_plants: int | None
    """Number of plants of this taxon on which candidate sets were calibrated; null if the bundle has none."""


def species_list(request_id: str, query: str, limit: int, names: TaxonNames, warnings: list[str]) -> SpeciesList:
    """Searches and builds the response; slow for many taxa.

    Args:
        request_id: Id of the request.
        query: What the client looks for.
        limit: Maximum number of taxa to list.
        names: The names that the model knows.
        warnings: Sentences for the client.
    """
    found = names.search(query, limit)
    status, message = _status(query.strip(), names, is_start=bool(found))
    return SpeciesList(
        request_id=request_id,
        species=[_entry(each) for each in found],
        total=len(names.taxonomy.taxa),
        status=status,
        message=message,
        warnings=warnings,
    )


def species_detail(request_id: str, taxon: Taxon, num_calibration_plants: int | None) -> SpeciesDetail:
    """Builds the response about one taxon."""
    return SpeciesDetail(
        request_id=request_id,
        taxon_id=taxon.taxon_id,
        rank=taxon.rank,
        scientific_name=taxon.scientific_name,
        author=taxon.author,
        synonyms=taxon.synonyms,
        common_names=taxon.common_names,
        genus=taxon.genus,
        family=taxon.family,
        gbif_id=taxon.gbif_id,
        num_calibration_plants=num_calibration_plants,
    )


def _entry(found: FoundTaxon) -> SpeciesEntry:
    taxon, match = found.taxon, found.match
    return SpeciesEntry(
        taxon_id=taxon.taxon_id,
        rank=taxon.rank,
        scientific_name=taxon.scientific_name,
        common_names=taxon.common_names,
        genus=taxon.genus,
        family=taxon.family,
        gbif_id=taxon.gbif_id,
        match=None if match is None else NameMatchView(match.kind, match.name),
    )


def _status(query: str, names: TaxonNames, *, is_start: bool) -> tuple[SpeciesStatus | None, str | None]:
    if not query:
        return None, None
    known = names.find(query)
    if known is not None:
        taxa = [names.taxonomy.taxa[position].scientific_name for position in known.taxa]
        return ("synonym" if known.match.kind == "synonym" else "known"), _meaning(known, taxa)
    if is_start:
        return None, f"No name is exactly {query!r}; the taxa listed have a name in which a word starts with it."
    return (
        "not_in_model",
        f"This model cannot name {query!r}: none of its {len(names.taxonomy.taxa):,} taxa has that name.",
    )


def _meaning(known: KnownName, taxa: Sequence[str]) -> str:
    name, kind = known.match.name, known.match.kind
    if kind == "accepted":
        return f"This model can name {name}."
    if kind in {"genus", "family"}:
        return f"{name} is a {kind}, of which this model can name {_in_words(taxa)}."
    what = "synonym" if kind == "synonym" else "common name"
    return f"{name} is a {what} of {_in_words(taxa)}, which this model can name."


def _in_words(names: Sequence[str]) -> str:
    """Lists names in words: "a", "a and b", "a, b, c and 9 others"."""
    shown = list(names[:_NUM_NAMED])
    if (num_others := len(names) - len(shown)) > 0:
        shown.append(f"{num_others:,} {'other' if num_others == 1 else 'others'}")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
