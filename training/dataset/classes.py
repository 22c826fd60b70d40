"""The class names of all data sets -> the ordered outputs of a network and the taxa that they mean.

Classes with the same taxon share one output. Under `within_sources` they share one output for each source; the outputs
then share the taxon, and an answer sums them, so that it never lists a plant twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from models.taxonomy import Output, Rank, Taxon, Taxonomy, fold, taxon_id_from_name
from training.dataset.class_names import Corrections, NamedClass, Synonyms, WrittenName, parse_class_names
from training.dataset.collection import MergeRule
from training.dataset.latin import genus_families
from training.dataset.name_checks import (
    AmbiguousName,
    MergedName,
    SimilarNames,
    ambiguous_names,
    merged_names,
    misspelt_genera,
    similar_names,
)
from training.dataset.sources.record import SourceClass
from training.dataset.synonyms import AcceptedName

TAXONOMY_VERSION: Final = "names as given by the sources"
ALL_SOURCES: Final = "all"
"""Source of the outputs that several data sets share."""


class Classes(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of a network, what they mean, and the class that each comes from; the other fields are for checks."""

    taxonomy: Taxonomy
    """Outputs ordered by key; taxa ordered by taxon id."""
    labels: dict[tuple[str, str], str]
    """(source, class id) -> key of the output."""
    merged: tuple[MergedName, ...] = ()
    """Names that share one taxon."""
    genus_level: tuple[WrittenName, ...] = ()
    """Classes that name a genus and no species: "Crocus spp.", and "Tulip" in a data set that gives the genus."""
    common: tuple[WrittenName, ...] = ()
    """Classes that are known by their common names alone, so that they have no genus: "Maize"."""
    similar: tuple[SimilarNames, ...] = ()
    """Names that are similar and were not merged."""
    misspelt: tuple[tuple[WrittenName, tuple[str, ...]], ...] = ()
    """Classes of a genus that is not listed, each with the genera that may be meant."""
    ambiguous: tuple[AmbiguousName, ...] = ()
    """Names with several accepted names."""


def build_classes(
    classes: Mapping[str, Iterable[SourceClass]],
    merge: MergeRule,
    synonyms: Synonyms | None = None,
    corrections: Corrections | None = None,
    *,
    synonyms_from: str = "",
) -> Classes:
    """Builds the outputs and their taxa.

    A taxon takes its names from the accepted name, else from its first class with a scientific name; its family comes
    from the first source that gives one for it or its genus, else from the list of genera. Its genus is the one in its
    name; for a common name it is the one that the source gives. A class that is known by its common name alone becomes
    a species without a genus.

    Args:
        classes: Source -> its classes. Earlier sources take precedence.
        merge: With "within_sources" each name of each source is an output, also if it is a synonym of another; the key
            is source, colon, name. With "across_sources" each taxon is an output of the source "all"; the key is "all",
            colon, taxon id.
        synonyms: Result of `read_synonyms`.
        corrections: Names that the recipe corrects.
        synonyms_from: Name of the taxonomy file, which becomes part of the taxonomy's version.

    Raises:
        DataError: A name has no Latin letters, or a correction names a class that does not exist.
    """
    named_classes = parse_class_names(classes, corrections or {}, synonyms or {})
    by_taxon: dict[str, list[NamedClass]] = {}
    for named in named_classes:
        by_taxon.setdefault(named.taxon_id, []).append(named)
    families = {named.genus: named.plant.family for named in reversed(named_classes) if named.plant.family}
    taxa = {taxon_id: _taxon(taxon_id, by_taxon[taxon_id], families) for taxon_id in sorted(by_taxon)}
    outputs = [_output(named, merge) for named in named_classes]
    taxonomy = Taxonomy(
        taxonomy_version=f"{TAXONOMY_VERSION}, synonyms by {synonyms_from}" if synonyms_from else TAXONOMY_VERSION,
        taxa=tuple(taxa.values()),
        outputs=tuple(sorted(set(outputs), key=lambda output: output.key)),
    )
    return Classes(
        taxonomy=taxonomy,
        labels={
            (named.source, named.plant.class_id): output.key
            for named, output in zip(named_classes, outputs, strict=True)
        },
        merged=tuple(entry for taxon in taxa.values() for entry in merged_names(taxon, by_taxon[taxon.taxon_id])),
        genus_level=tuple(named.written for named in named_classes if taxa[named.taxon_id].rank == "genus"),
        common=tuple(named.written for named in named_classes if not taxa[named.taxon_id].genus),
        similar=tuple(similar_names(taxa.values(), by_taxon)),
        misspelt=tuple(misspelt_genera(taxa.values(), by_taxon)),
        ambiguous=tuple(ambiguous_names(named_classes)),
    )


def _output(named: NamedClass, merge: MergeRule) -> Output:
    """Returns the output of a class; under "within_sources" a list of synonyms does not change its key."""
    if merge == "within_sources":
        written = taxon_id_from_name(named.name.key)
        return Output(key=f"{named.source}:{written}", source=named.source, taxon_id=named.taxon_id)
    return Output(key=f"{ALL_SOURCES}:{named.taxon_id}", source=ALL_SOURCES, taxon_id=named.taxon_id)


def _taxon(taxon_id: str, group: Sequence[NamedClass], family_of_genus: Mapping[str, str]) -> Taxon:
    """Combines the classes of one taxon."""
    accepted = next((named.accepted for named in group if named.accepted), None)
    own = [named for named in group if not named.is_synonym]
    authors = [accepted.author if accepted else "", *(named.name.author for named in own)]
    rank, scientific_name, genus = _best_name(accepted, own)
    families = [*(named.plant.family for named in group), accepted.family if accepted else ""]
    if genus:
        families += [family_of_genus.get(genus, ""), genus_families().get(genus, "")]
    return Taxon(
        taxon_id=taxon_id,
        rank=rank,
        scientific_name=scientific_name,
        genus=genus,
        family=next(filter(None, families), ""),
        author=next(filter(None, authors), ""),
        synonyms=tuple(dict.fromkeys(named.name.scientific_name for named in group if named.is_synonym)),
        common_names=_common_names(group),
        gbif_id=accepted.gbif_id
        if accepted
        else next((named.plant.gbif_id for named in own if named.plant.gbif_id), None),
    )


def _best_name(accepted: AcceptedName | None, own: Sequence[NamedClass]) -> tuple[Rank, str, str]:
    """Returns rank, scientific name and genus of the accepted name, else of the most complete written one.

    Scientific names come before common ones, then names with a hybrid sign, names with a given genus, earlier names.
    """
    if accepted:
        return accepted.rank, accepted.scientific_name, accepted.genus
    best = max(own, key=lambda named: (not named.name.common, named.name.hybrid, bool(named.plant.genus)))
    return best.name.rank if best.genus else "species", best.name.scientific_name, best.genus


def _common_names(group: Iterable[NamedClass]) -> tuple[str, ...]:
    """Returns the common names in order, without repeats in another case."""
    distinct: dict[str, str] = {}
    for named in group:
        distinct.setdefault(fold(named.common_name), named.common_name)
    return tuple(filter(None, distinct.values()))
