"""Names that a person should check: merged, alike, or ambiguous."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from models.taxonomy import Taxon
from training.dataset.class_names import NamedClass, WrittenName
from training.dataset.latin import may_be_latin, similar_genera
from training.dataset.spelling import similar_pairs

MergeKind = Literal["within_source", "across_sources", "synonym"]


class MergedName(msgspec.Struct, frozen=True, kw_only=True):
    """Written names that share one taxon, or synonyms that were replaced by an accepted name."""

    kind: MergeKind
    """One source writes the name in several ways; several sources have it; or it is a synonym."""
    taxon_id: str
    """The taxon that they share."""
    scientific_name: str
    """Name of that taxon."""
    written: tuple[WrittenName, ...]
    """All the names; of kind "synonym" only the synonyms."""


class SimilarNames(msgspec.Struct, frozen=True, kw_only=True):
    """Two taxa of one genus with similar names, one of which may be a misspelling; they are not merged."""

    first: str
    """Scientific name."""
    second: str
    """Scientific name."""
    written: tuple[WrittenName, ...]
    """The classes of both."""


class AmbiguousName(msgspec.Struct, frozen=True, kw_only=True):
    """A name that the taxonomy file lists as a synonym of several plants; it stays as written."""

    written: WrittenName
    """The class."""
    candidates: tuple[str, ...]
    """The accepted names that it may mean."""


def merged_names(taxon: Taxon, group: Sequence[NamedClass]) -> Iterator[MergedName]:
    """Yields how the classes of one taxon were merged."""

    def merged(kind: MergeKind, found: Iterable[NamedClass]) -> MergedName:
        written = tuple(named.written for named in found)
        return MergedName(kind=kind, taxon_id=taxon.taxon_id, scientific_name=taxon.scientific_name, written=written)

    by_source: dict[str, list[NamedClass]] = {}
    for named in group:
        by_source.setdefault(named.source, []).append(named)
    for of_source in by_source.values():
        if len(of_source) > 1:
            yield merged("within_source", of_source)
    if len(by_source) > 1:
        yield merged("across_sources", group)
    synonyms = [named for named in group if named.is_synonym]
    if synonyms:
        yield merged("synonym", synonyms)


def similar_names(taxa: Iterable[Taxon], by_taxon: Mapping[str, Sequence[NamedClass]]) -> Iterator[SimilarNames]:
    """Yields pairs of species of one genus whose epithets are similar."""
    by_genus: dict[str, list[tuple[str, Taxon]]] = {}
    for taxon in taxa:
        words = by_taxon[taxon.taxon_id][0].key.split()
        if taxon.rank == "species" and taxon.genus and len(words) == 2:
            by_genus.setdefault(words[0], []).append((words[1], taxon))
    for species in by_genus.values():
        for one, other in similar_pairs([epithet for epithet, _ in species]):
            pair = species[one][1], species[other][1]
            written = tuple(named.written for taxon in pair for named in by_taxon[taxon.taxon_id])
            yield SimilarNames(first=pair[0].scientific_name, second=pair[1].scientific_name, written=written)


def misspelt_genera(
    taxa: Iterable[Taxon], by_taxon: Mapping[str, Sequence[NamedClass]]
) -> Iterator[tuple[WrittenName, tuple[str, ...]]]:
    """Yields the classes whose genus, or first word where they have none, is like a genus that is listed."""
    for taxon in taxa:
        genus = taxon.genus or taxon.scientific_name.split()[0]
        # Common words such as Silver and Oleander are like a genus too; those of a misspelt name end as Latin words do.
        if taxon.genus or (" " in taxon.scientific_name and may_be_latin(genus, "alba")):
            meant = tuple(similar_genera(genus))
            yield from ((named.written, meant) for named in by_taxon[taxon.taxon_id] if meant)


def ambiguous_names(classes: Iterable[NamedClass]) -> Iterator[AmbiguousName]:
    """Yields the classes whose name has several accepted names."""
    for named in classes:
        if len(named.candidates) > 1:
            candidates = tuple(name.scientific_name for name in named.candidates)
            yield AmbiguousName(written=named.written, candidates=candidates)
