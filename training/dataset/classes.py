"""From the names that sources give to the ordered outputs of a network and the taxa they mean.

Every written name becomes a key (`training.dataset.names`), the key an accepted name where a taxonomy file knows one
(`training.dataset.synonyms`), and that a taxon. Two classes of one taxon are one output, or under `within_sources`
one output a source, which then share the taxon: an answer sums them and never lists a plant twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from models.errors import DataError
from models.taxonomy import Output, Rank, Taxon, Taxonomy, fold, taxon_id_from_name
from training.dataset.collection import MergeRule
from training.dataset.names import PlantName, parse_name
from training.dataset.sources.record import SourceClass
from training.dataset.spelling import similar_pairs
from training.dataset.synonyms import AcceptedName

TAXONOMY_VERSION: Final = "names as given by the sources"
ALL_SOURCES: Final = "all"
"""Source of the outputs that several data sets teach."""

MergeKind = Literal["within_source", "across_sources", "synonym"]
NameTables = Mapping[str, Mapping[str, str]]
"""Source -> name (or class id) as written -> scientific name: what a recipe corrects by hand."""
Accepted = Mapping[str, Sequence[AcceptedName]]
"""Key of a name -> its accepted name; several where it cannot be told which."""


class WrittenName(msgspec.Struct, frozen=True, order=True):
    """A class as its data set names it."""

    source: str
    """Name of the data set."""
    name: str
    """As written there."""


class MergedName(msgspec.Struct, frozen=True, kw_only=True):
    """Several written names that became one taxon, or one that became another."""

    kind: MergeKind
    """Written in several ways in one source; given by several sources; or a synonym of an accepted name."""
    taxon_id: str
    """What they became."""
    scientific_name: str
    """Name of that taxon."""
    written: tuple[WrittenName, ...]
    """All the names; of kind "synonym" only the synonyms."""


class SimilarNames(msgspec.Struct, frozen=True, kw_only=True):
    """Two taxa of one genus whose names are so alike that one may be a misspelling; they stay two."""

    first: str
    """Scientific name."""
    second: str
    """Scientific name."""
    written: tuple[WrittenName, ...]
    """The classes of both."""


class AmbiguousName(msgspec.Struct, frozen=True, kw_only=True):
    """A name that the taxonomy file holds for a synonym of several plants; it stays as written."""

    written: WrittenName
    """The class."""
    candidates: tuple[str, ...]
    """The accepted names that it may mean."""


class Classes(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of a network, what they mean, and which class teaches which; the rest is for a person to check."""

    taxonomy: Taxonomy
    """Outputs ordered by key; taxa by taxon id."""
    labels: dict[tuple[str, str], str]
    """(source, class id) -> key of the output that the class teaches."""
    merged: tuple[MergedName, ...] = ()
    """Names that were taken as one."""
    genus_level: tuple[WrittenName, ...] = ()
    """Classes that name no species: "Crocus spp.", "Tulip", and common names that may mean any number of species."""
    similar: tuple[SimilarNames, ...] = ()
    """Names that were not taken as one, though they might be."""
    ambiguous: tuple[AmbiguousName, ...] = ()
    """Names whose accepted name cannot be told."""


class _Member(msgspec.Struct, frozen=True, kw_only=True):
    """One class of one source, and what its name was found to mean."""

    source: str
    plant: SourceClass
    name: PlantName
    """As written or corrected."""
    key: str
    """Of the accepted name."""
    taxon_id: str
    is_synonym: bool
    genus: str
    common_name: str
    candidates: Sequence[AcceptedName]

    @property
    def written(self) -> WrittenName:
        return WrittenName(self.source, self.plant.name)

    @property
    def accepted(self) -> AcceptedName | None:
        return self.candidates[0] if len(self.candidates) == 1 else None


def names_to_look_up(classes: Mapping[str, Iterable[SourceClass]], names: NameTables | None = None) -> set[str]:
    """The keys of all names, for `read_synonyms`.

    Common names are among them: a taxonomy file knows that "Aloe Vera" is a species, and that "Venus Flytrap" is none.

    Raises:
        DataError: As `build_classes`.
    """
    return {member.name.key for member in _members(classes, names or {}, {})}


def build_classes(
    classes: Mapping[str, Iterable[SourceClass]],
    merge: MergeRule,
    synonyms: Accepted | None = None,
    names: NameTables | None = None,
    *,
    synonyms_from: str = "",
) -> Classes:
    """Builds the outputs and their taxa.

    A taxon takes its names from the accepted name, else from its first class with a scientific name; its family from
    the first source that gives one. Its genus is the one in its name, but for a common name the one that the source
    gives.

    Args:
        classes: Source -> its classes; the order of the sources decides which is first.
        merge: "within_sources": one output for each name of each source, synonyms apart, its key source, colon, name;
            "across_sources": one output for each taxon, of the source "all", its key with the taxon's id.
        synonyms: What `read_synonyms` found.
        names: Names that the recipe corrects.
        synonyms_from: Name of the taxonomy file, which becomes part of the taxonomy's version.

    Raises:
        DataError: A name has no Latin letters, or a corrected name stands in no class.
    """
    members = _members(classes, names or {}, synonyms or {})
    by_taxon: dict[str, list[_Member]] = {}
    for member in members:
        by_taxon.setdefault(member.taxon_id, []).append(member)
    taxa = {taxon_id: _taxon(taxon_id, by_taxon[taxon_id]) for taxon_id in sorted(by_taxon)}
    outputs = [_output(member, merge) for member in members]
    taxonomy = Taxonomy(
        taxonomy_version=f"{TAXONOMY_VERSION}, synonyms by {synonyms_from}" if synonyms_from else TAXONOMY_VERSION,
        taxa=tuple(taxa.values()),
        outputs=tuple(sorted(set(outputs), key=lambda output: output.key)),
    )
    return Classes(
        taxonomy=taxonomy,
        labels={
            (member.source, member.plant.class_id): output.key for member, output in zip(members, outputs, strict=True)
        },
        merged=tuple(entry for taxon in taxa.values() for entry in _merges(taxon, by_taxon[taxon.taxon_id])),
        genus_level=tuple(member.written for member in members if taxa[member.taxon_id].rank == "genus"),
        similar=tuple(_similar(taxa.values(), by_taxon)),
        ambiguous=tuple(
            AmbiguousName(written=member.written, candidates=tuple(name.scientific_name for name in member.candidates))
            for member in members
            if len(member.candidates) > 1
        ),
    )


def _members(classes: Mapping[str, Iterable[SourceClass]], names: NameTables, synonyms: Accepted) -> list[_Member]:
    """All classes of all sources, in order, with their names understood."""
    members = []
    unused = {(source, written) for source, table in names.items() for written in table}
    for source, plants in classes.items():
        table = names.get(source, {})
        for plant in plants:
            unused -= {(source, plant.name), (source, plant.class_id)}
            corrected = table.get(plant.name) or table.get(plant.class_id) or ""
            members.append(_member(source, plant, corrected, synonyms))
    if unused:
        raise DataError(
            "the recipe corrects names that no class has",
            value=", ".join(f"{source}: {written!r}" for source, written in sorted(unused)),
            limit="names exactly as the data set writes them",
            remedy="correct or delete them under `names`",
        )
    return members


def _member(source: str, plant: SourceClass, corrected: str, synonyms: Accepted) -> _Member:
    """Understands the name of a class.

    A name that begins with the genus that is given, that stands beside a common name, or that the recipe gives is known
    to be scientific, and so is one with an author. Of any other, such as "Dog rose", the given genus is right.
    """
    text = corrected or plant.name
    begins_with_genus = bool(plant.genus) and text.lower().split()[:1] == [plant.genus.lower()]
    name = parse_name(text, scientific=bool(corrected or plant.common_name) or begins_with_genus)
    scientific = bool(corrected or plant.common_name or name.author or name.hybrid) or begins_with_genus
    genus = name.genus if scientific and not name.common else plant.genus or name.genus
    # Where the recipe does more than mend an epithet, the data set's own name was one of everyday language.
    renamed = bool(corrected) and fold(plant.name).split()[:1] != fold(corrected).split()[:1]
    name_key = name.key
    candidates = synonyms.get(name_key, ())
    key = candidates[0].key if len(candidates) == 1 else name_key
    return _Member(
        source=source,
        plant=plant,
        name=name,
        key=key,
        taxon_id=taxon_id_from_name(key),
        is_synonym=key != name_key,
        genus=genus,
        common_name=plant.common_name or (plant.name if renamed else ""),
        candidates=candidates,
    )


def _output(member: _Member, merge: MergeRule) -> Output:
    """Within a source the key comes from the written name, so that a list of synonyms never changes the outputs."""
    if merge == "within_sources":
        written = taxon_id_from_name(member.name.key)
        return Output(key=f"{member.source}:{written}", source=member.source, taxon_id=member.taxon_id)
    return Output(key=f"{ALL_SOURCES}:{member.taxon_id}", source=ALL_SOURCES, taxon_id=member.taxon_id)


def _taxon(taxon_id: str, group: Sequence[_Member]) -> Taxon:
    """One taxon of all classes that mean it."""
    accepted = next((member.accepted for member in group if member.accepted), None)
    own = [member for member in group if not member.is_synonym]
    authors = [accepted.author if accepted else "", *(member.name.author for member in own)]
    families = [*(member.plant.family for member in group), accepted.family if accepted else ""]
    rank, scientific_name, genus = _best_name(accepted, own)
    return Taxon(
        taxon_id=taxon_id,
        rank=rank,
        scientific_name=scientific_name,
        genus=genus,
        family=next(filter(None, families), ""),
        author=next(filter(None, authors), ""),
        synonyms=tuple(dict.fromkeys(member.name.scientific_name for member in group if member.is_synonym)),
        common_names=_common_names(group),
        gbif_id=accepted.gbif_id if accepted else None,
    )


def _best_name(accepted: AcceptedName | None, own: Sequence[_Member]) -> tuple[Rank, str, str]:
    """Rank, scientific name and genus: as accepted, else as written best.

    That is as a scientific name, with the hybrid sign that others leave out, beside a genus, and first of all.
    """
    if accepted:
        return accepted.rank, accepted.scientific_name, accepted.genus
    best = max(own, key=lambda member: (not member.name.common, member.name.hybrid, bool(member.plant.genus)))
    return best.name.rank, best.name.scientific_name, best.genus


def _common_names(group: Iterable[_Member]) -> tuple[str, ...]:
    """In order, each once whatever its case."""
    distinct: dict[str, str] = {}
    for member in group:
        distinct.setdefault(fold(member.common_name), member.common_name)
    return tuple(filter(None, distinct.values()))


def _merges(taxon: Taxon, group: Sequence[_Member]) -> Iterator[MergedName]:
    """What a person should know about the names that became one taxon."""

    def merged(kind: MergeKind, found: Iterable[_Member]) -> MergedName:
        written = tuple(member.written for member in found)
        return MergedName(kind=kind, taxon_id=taxon.taxon_id, scientific_name=taxon.scientific_name, written=written)

    by_source: dict[str, list[_Member]] = {}
    for member in group:
        by_source.setdefault(member.source, []).append(member)
    for of_source in by_source.values():
        if len(of_source) > 1:
            yield merged("within_source", of_source)
    if len(by_source) > 1:
        yield merged("across_sources", group)
    synonyms = [member for member in group if member.is_synonym]
    if synonyms:
        yield merged("synonym", synonyms)


def _similar(taxa: Iterable[Taxon], by_taxon: Mapping[str, Sequence[_Member]]) -> Iterator[SimilarNames]:
    """Pairs of species of one genus whose epithets are alike."""
    by_genus: dict[str, list[tuple[str, Taxon]]] = {}
    for taxon in taxa:
        words = by_taxon[taxon.taxon_id][0].key.split()
        if taxon.rank == "species" and len(words) == 2:
            by_genus.setdefault(words[0], []).append((words[1], taxon))
    for species in by_genus.values():
        for one, other in similar_pairs([epithet for epithet, _ in species]):
            pair = species[one][1], species[other][1]
            written = tuple(member.written for taxon in pair for member in by_taxon[taxon.taxon_id])
            yield SimilarNames(first=pair[0].scientific_name, second=pair[1].scientific_name, written=written)
