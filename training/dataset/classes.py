"""The class names of all data sets -> the ordered outputs of a network and the taxa that they mean.

Classes with the same taxon share one output. Under `within_sources` they share one output for each source; the outputs
then share the taxon, and an answer sums them, so that it never lists a plant twice.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Final

import msgspec

from models.errors import DataError, some_of
from models.names import PlantName, fold, genus_families, may_be_latin, parse_name, similar_genera
from models.taxonomy import Output, Taxon, Taxonomy, taxon_id_from_name
from training.dataset.collection import MergeRule
from training.dataset.sources.record import SourceClass
from training.dataset.synonyms import AcceptedName

Corrections = Mapping[str, Mapping[str, str]]
"""Source -> name (or class id) as written -> scientific name: the `names` tables of a collection."""
Synonyms = Mapping[str, Sequence[AcceptedName]]
"""Key of a name -> its accepted name; several if the name is ambiguous."""


class NamedClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class of one source, and what its name means."""

    source: str
    plant: SourceClass
    name: PlantName
    """The parsed name, corrected if the recipe corrects it."""
    key: str
    """Key of the accepted name."""
    taxon_id: str
    is_synonym: bool
    genus: str
    """Empty if the class is known by its common name alone."""
    common_name: str
    candidates: Sequence[AcceptedName]
    """The accepted names that the taxonomy file gives for the name."""

    @property
    def accepted(self) -> AcceptedName | None:
        """The accepted name, if the taxonomy file gives exactly one."""
        return self.candidates[0] if len(self.candidates) == 1 else None


def names_to_look_up(classes: Mapping[str, Iterable[SourceClass]], corrections: Corrections) -> set[str]:
    """Returns the keys of all names, for `read_synonyms`.

    Common names are included: a taxonomy file knows that "Aloe Vera" is a species and that "Venus Flytrap" is not.

    Raises:
        DataError: As `parse_class_names`.
    """
    return {named.name.key for named in parse_class_names(classes, corrections, {})}


def parse_class_names(
    classes: Mapping[str, Iterable[SourceClass]], corrections: Corrections, synonyms: Synonyms
) -> list[NamedClass]:
    """Parses the names of all classes of all sources, in order.

    Raises:
        DataError: A name has no Latin letters, or a correction names a class that does not exist.
    """
    named = []
    unused = {(source, written) for source, table in corrections.items() for written in table}
    for source, plants in classes.items():
        table = corrections.get(source, {})
        for plant in plants:
            unused -= {(source, plant.name), (source, plant.class_id)}
            corrected = table.get(plant.name) or table.get(plant.class_id) or ""
            named.append(_parse_class_name(source, plant, corrected, synonyms))
    if unused:
        raise DataError(
            "the recipe corrects names that no class has",
            value=", ".join(f"{source}: {written!r}" for source, written in sorted(unused)),
            limit="names exactly as the data set writes them",
            remedy="correct or delete them under `names`",
        )
    return named


def _parse_class_name(source: str, plant: SourceClass, corrected: str, synonyms: Synonyms) -> NamedClass:
    """Parses the name of one class.

    A name is scientific if the data set says so, if it begins with the given genus, has a common name beside it, is
    given by the recipe, or has an author. For any other name, such as "Dog rose", the given genus is used; without one,
    a name that may be Latin has the genus that it begins with, and a common name has none.
    """
    text = corrected or plant.name
    begins_with_genus = bool(plant.genus) and text.lower().split()[:1] == [plant.genus.lower()]
    declared = plant.is_scientific or bool(corrected or plant.common_name) or begins_with_genus
    name = parse_name(text, scientific=declared)
    if not name.key.isascii() or not any(char.isalnum() for char in name.genus):
        raise DataError(
            "a class has no name in Latin letters, so it cannot be distinguished from other such classes",
            value=text,
            limit="a scientific name",
            remedy="name its folder Common (Scientific)",
        )
    in_name = "" if name.common else name.genus
    genus = (in_name if declared or name.author or name.hybrid else "") or plant.genus or in_name
    # A correction that changes the first word replaces a common name, which is kept as such.
    renamed = bool(corrected) and fold(plant.name).split()[:1] != fold(corrected).split()[:1]
    name_key = name.key
    candidates = synonyms.get(name_key, ())
    key = candidates[0].key if len(candidates) == 1 else name_key
    return NamedClass(
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


# Endings, after three letters or more, by which an epithet agrees with its genus (alba, albus, album), or which are
# mistaken for one another (thunbergi, thunbergii).
_ENDING: Final = re.compile(r"(?<=...)(?:ensis|ense|ii|[iu]s|um|o[ns]|ae|[aei])$")
_LONG_STEM: Final = 6  # from this length on, stems that differ by one letter are likely a misspelling


def similar_pairs(epithets: Sequence[str]) -> list[tuple[int, int]]:
    """Returns pairs of epithets of one genus of which one may be a misspelling of the other.

    They differ by one letter, by their Latin ending, or, if long, by both. Epithets with digits are generated names and
    never similar. A pair is two positions, ascending.
    """
    by_form: dict[str, list[int]] = {}
    for at, epithet in enumerate(epithets):
        if not any(char.isdigit() for char in epithet):
            stem = _ENDING.sub("", epithet)
            forms = {*_one_letter_open(epithet), f"{stem}+"}
            if len(stem) >= _LONG_STEM:
                forms |= {f"{form}+" for form in _one_letter_open(stem)}
            for form in forms:
                by_form.setdefault(form, []).append(at)
    pairs = {pair for positions in by_form.values() for pair in combinations(positions, 2)}
    return sorted((one, other) for one, other in pairs if epithets[one] != epithets[other])


def _one_letter_open(word: str) -> set[str]:
    """Returns the word with a question mark in place of each letter, and between any two of them.

    Two words have such a form in common if one letter is replaced, added or missing, and in no other case.
    """
    return {f"{word[:cut]}?{rest}" for cut in range(len(word) + 1) for rest in (word[cut:], word[cut + 1 :])}


class NameFinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A name that a person should check."""

    name: str
    """The class or taxon."""
    members: tuple[str, ...] = ()
    """Source and name as written, of each class."""
    explanation: str = ""
    """What was done, or what to check."""


class NameFindings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The names that a person should check."""

    joined: tuple[NameFinding, ...] = ()
    """Classes of one source that share one taxon."""
    merged: tuple[NameFinding, ...] = ()
    """Names of several sources, and synonyms, that share one taxon."""
    genus_level: tuple[NameFinding, ...] = ()
    """Classes that name a genus and no species: "Crocus spp.", and "Tulip" in a data set that gives the genus."""
    common: tuple[NameFinding, ...] = ()
    """Classes that are known by their common names alone, so that they have no genus: "Maize"."""
    misspelt: tuple[NameFinding, ...] = ()
    """Classes of a genus that is not listed, each with the genera that may be meant."""
    similar: tuple[NameFinding, ...] = ()
    """Names that are similar to another or ambiguous, which were not merged."""


def _joined(name: str, group: Sequence[NamedClass]) -> Iterator[NameFinding]:
    """Yields the classes of each source that has several of one taxon."""
    for source in dict.fromkeys(named.source for named in group):
        own = [named for named in group if named.source == source]
        if len(own) > 1:
            yield _finding(own, "if these are different plants, name them apart", name)


def _merged(name: str, group: Sequence[NamedClass]) -> Iterator[NameFinding]:
    """Yields how the classes of one taxon were merged."""
    if len({named.source for named in group}) > 1:
        yield _finding(group, "several sources have it: one taxon, whose outputs are summed", name)
    if synonyms := [named for named in group if named.is_synonym]:
        yield _finding(synonyms, "synonyms of the accepted name", name)


def _similar(taxa: Iterable[Taxon], by_taxon: Mapping[str, Sequence[NamedClass]]) -> Iterator[NameFinding]:
    """Yields pairs of species of one genus whose epithets are similar."""
    by_genus: dict[str, list[tuple[str, Taxon]]] = {}
    for taxon in taxa:
        words = by_taxon[taxon.taxon_id][0].key.split()
        if taxon.rank == "species" and taxon.genus and len(words) == 2:
            by_genus.setdefault(words[0], []).append((words[1], taxon))
    for species in by_genus.values():
        for one, other in similar_pairs([epithet for epithet, _ in species]):
            pair = species[one][1], species[other][1]
            classes = [named for taxon in pair for named in by_taxon[taxon.taxon_id]]
            name = f"{pair[0].scientific_name} / {pair[1].scientific_name}"
            yield _finding(classes, "may be one plant: if so, give one of the names under [sources.X.names]", name)


def _misspelt(taxa: Iterable[Taxon], by_taxon: Mapping[str, Sequence[NamedClass]]) -> Iterator[NameFinding]:
    """Yields the classes whose genus, or first word where they have none, is like a genus that is listed."""
    for taxon in taxa:
        genus = taxon.genus or taxon.scientific_name.split()[0]
        # Common words such as Silver and Oleander are like a genus too; those of a misspelt name end as Latin words do.
        is_latin = taxon.genus or (" " in taxon.scientific_name and may_be_latin(genus, "alba"))
        if is_latin and (meant := similar_genera(genus)):
            explanation = f"no listed genus; perhaps {' or '.join(meant)}"
            yield from (_finding([named], explanation) for named in by_taxon[taxon.taxon_id])


def _finding(classes: Sequence[NamedClass], explanation: str, name: str = "") -> NameFinding:
    """Returns the finding on some classes, under the name of the first if none is given."""
    members = tuple(f"{named.source}: {named.plant.name}" for named in classes)
    return NameFinding(name=name or classes[0].plant.name, members=members, explanation=explanation)


_MOST_MISSING: Final = 10
TAXONOMY_VERSION: Final = "names as given by the sources"
ALL_SOURCES: Final = "all"
"""Source of the outputs that several data sets share."""


class Classes(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of a network, what they mean, the class that each comes from, and the names to check."""

    taxonomy: Taxonomy
    """Outputs ordered by key; taxa ordered by taxon id."""
    labels: dict[tuple[str, str], str]
    """(source, class id) -> key of the output."""
    names: NameFindings = NameFindings()
    notes: tuple[str, ...] = ()
    """How many names the taxonomy file has."""


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
    outputs = []
    for named in named_classes:
        source = ALL_SOURCES
        plant = named.taxon_id
        if merge == "within_sources":  # a list of synonyms does not change the key
            source = named.source
            plant = taxon_id_from_name(named.name.key)
        outputs.append(Output(key=f"{source}:{plant}", source=source, taxon_id=named.taxon_id))
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
        names=_names_to_check(named_classes, taxa, by_taxon),
        notes=_known_names(named_classes, synonyms_from),
    )


def _known_names(classes: Sequence[NamedClass], synonyms_from: str) -> tuple[str, ...]:
    if not synonyms_from:
        return ()
    missing = [named.plant.name for named in classes if not named.candidates]
    without = f", not {some_of(missing, _MOST_MISSING)}" if missing else ""
    return (f"{synonyms_from} has {len(classes) - len(missing):,} of {len(classes):,} names{without}.",)


def _names_to_check(
    classes: Sequence[NamedClass], taxa: Mapping[str, Taxon], by_taxon: Mapping[str, Sequence[NamedClass]]
) -> NameFindings:
    genus_level = "names no species, so it counts for its genus; a [sources.X.names] entry can correct it"
    common = "no scientific name; name its folder Common (Scientific), or give its genus"
    several = "a synonym of several names, so it stays as written: "
    ambiguous = [
        _finding([named], several + ", ".join(each.scientific_name for each in named.candidates))
        for named in classes
        if len(named.candidates) > 1
    ]
    groups = [(taxon.scientific_name, by_taxon[taxon.taxon_id]) for taxon in taxa.values()]
    return NameFindings(
        joined=tuple(chain.from_iterable(_joined(*group) for group in groups)),
        merged=tuple(chain.from_iterable(_merged(*group) for group in groups)),
        genus_level=tuple(_finding([named], genus_level) for named in classes if taxa[named.taxon_id].rank == "genus"),
        common=tuple(_finding([named], common) for named in classes if not taxa[named.taxon_id].genus),
        misspelt=tuple(_misspelt(taxa.values(), by_taxon)),
        similar=(*_similar(taxa.values(), by_taxon), *ambiguous),
    )


def _taxon(taxon_id: str, group: Sequence[NamedClass], family_of_genus: Mapping[str, str]) -> Taxon:
    """Combines the classes of one taxon."""
    accepted = next((named.accepted for named in group if named.accepted), None)
    own = [named for named in group if not named.is_synonym]
    authors = [accepted.author if accepted else "", *(named.name.author for named in own)]
    if accepted:
        rank = accepted.rank
        scientific_name = accepted.scientific_name
        genus = accepted.genus
    else:  # scientific names come before common ones, then names with a hybrid sign or a given genus, earlier names
        best = max(own, key=lambda named: (not named.name.common, named.name.hybrid, bool(named.plant.genus)))
        genus = best.genus
        scientific_name = best.name.scientific_name
        rank = best.name.rank if genus else "species"
    families = [*(named.plant.family for named in group), accepted.family if accepted else ""]
    if genus:
        families += [family_of_genus.get(genus, ""), genus_families().get(genus, "")]
    common_names: dict[str, str] = {}  # without repeats in another case
    for named in group:
        common_names.setdefault(fold(named.common_name), named.common_name)
    return Taxon(
        taxon_id=taxon_id,
        rank=rank,
        scientific_name=scientific_name,
        genus=genus,
        family=next(filter(None, families), ""),
        author=next(filter(None, authors), ""),
        synonyms=tuple(dict.fromkeys(named.name.scientific_name for named in group if named.is_synonym)),
        common_names=tuple(filter(None, common_names.values())),
        gbif_id=accepted.gbif_id
        if accepted
        else next((named.plant.gbif_id for named in own if named.plant.gbif_id), None),
        powo_id=accepted.powo_id if accepted else "",
    )
