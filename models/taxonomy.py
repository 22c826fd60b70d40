"""Taxa, their names and ranks, the taxon of each network output, and the search for the names that people write.

Several outputs may belong to one taxon (the same plant in two data sets); their probabilities are summed. An output is
identified by its key, a taxon by its taxon id, never by an index.

A name is that of a species or another accepted name, a synonym, a common name, a genus or a family. For a search, case,
accents, the hybrid sign and repeated spaces do not matter: "mentha x piperita" is "Mentha × piperita".
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Final, Literal, get_args

import msgspec
import numpy as np

from models.arrays import Flags, Positions
from models.errors import DataError
from models.harmful import HarmKind, harms_of
from models.names import (
    OLDER_FAMILIES,
    PlantName,
    Rank,
    fold,
    fold_name,
    parse_name,
    split_brackets,
    split_class_name,
    without_number,
)

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
LANGUAGE: Final = r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8}){0,7}"
"""A language code (BCP 47), such as "de" or "pt-BR"."""


class Taxon(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A plant with its botanical names.

    A taxon of rank "genus" stands for pictures that are identified only to their genus ("Crocus spp."). Its probability
    counts for the genus, and an answer never names it as a species. A class that is known by its common name alone
    ("Maize") is a species without a genus: an answer may name it, and it counts for no genus.
    """

    taxon_id: NonEmpty
    """Stable identifier, which stays the same after retraining and when names are corrected."""
    rank: Rank
    """Taxonomic rank of the accepted name."""
    scientific_name: NonEmpty
    """Accepted name without the author."""
    genus: str
    """Genus of the accepted name; empty for a class that is known by its common name alone."""
    family: str = ""
    """Botanical family, empty if unknown."""
    author: str = ""
    """Author of the name, as cited after it."""
    synonyms: tuple[str, ...] = ()
    """Other scientific names of the same taxon."""
    common_names: tuple[str, ...] = ()
    """Common names, the best known first."""
    gbif_id: int | None = None
    """Key in the GBIF backbone taxonomy, if known."""
    powo_id: str = ""
    """Id in Plants of the World Online and in the International Plant Names Index, such as "30001404-2", if known."""
    names: dict[str, tuple[str, ...]] = {}
    """Language in lower case ("de", "pt-br") -> common names in it, the preferred first."""

    def common_names_in(self, languages: Iterable[str]) -> tuple[str, ...]:
        """Returns the common names in the first of these languages that has some, else `common_names`."""
        return next(filter(None, map(self.names_in, languages)), self.common_names)

    def names_in(self, language: str) -> tuple[str, ...]:
        """Returns the common names in a language such as "de-AT", or else in "de", or else in another one of "de"."""
        parts = language.lower().split("-")
        exact = ["-".join(parts[:count]) for count in range(len(parts), 0, -1)]  # RFC 4647, 3.4
        wider = [each for each in self.names if each.partition("-")[0] == parts[0]]
        found = (self.names[each] for each in (*exact, *wider) if self.names.get(each))
        return next(found, self.common_names if parts[0] == "en" else ())

    def __post_init__(self) -> None:
        if self.rank == "genus" and not self.genus:
            raise DataError(f"taxon {self.taxon_id!r} of rank genus has no genus", remedy="add its genus")


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One output of the network, in the order of the logits."""

    key: NonEmpty
    """Unique name of the output: its source, a colon, and the name in that source or the taxon id."""
    source: NonEmpty
    """Data set whose pictures this output was trained on."""
    taxon_id: NonEmpty
    """The taxon of this output."""


class Taxonomy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The taxa that a network can name, and its outputs in order: the content of `taxa.json`.

    Raises:
        DataError: Two taxa have the same id, two outputs have the same key, or the taxon of an output is not listed.
    """

    taxonomy_version: NonEmpty
    """Edition of the names; changes without retraining."""
    taxa: tuple[Taxon, ...]
    """All taxa, in any order."""
    outputs: tuple[Output, ...]
    """All network outputs, in the order of the logits."""

    def __post_init__(self) -> None:
        ids = [taxon.taxon_id for taxon in self.taxa]
        keys = [output.key for output in self.outputs]
        for what, values in (("taxon id", ids), ("output key", keys)):
            twice, number = Counter(values).most_common(1)[0] if values else ("", 0)
            if number > 1:
                raise DataError(f"duplicate {what}", value=twice, remedy=f"list every {what} once")
        known = set(ids)
        for output in self.outputs:
            if output.taxon_id not in known:
                raise DataError(
                    f"the taxon of output {output.key!r} is not listed",
                    value=output.taxon_id,
                    remedy="add the taxon to `taxa`, or correct the output",
                )

    @property
    def output_keys(self) -> tuple[str, ...]:
        """The keys of the outputs in order; the label hash depends on nothing else."""
        return tuple(output.key for output in self.outputs)

    @cached_property
    def label_hash(self) -> str:
        """SHA-256 of the output keys in order, without names, so that names can be corrected without retraining."""
        return label_hash(self.output_keys)

    @cached_property
    def taxon_of_output(self) -> Positions:
        """Position in `taxa` of each output's taxon, shape (num_outputs,)."""
        return np.array([self.position_of[output.taxon_id] for output in self.outputs], dtype=np.intp)

    @cached_property
    def position_of(self) -> dict[str, int]:
        """The positions in `taxa` by the ids of the taxa."""
        return {taxon.taxon_id: index for index, taxon in enumerate(self.taxa)}

    @cached_property
    def by_id(self) -> dict[str, Taxon]:
        """The taxa by their ids."""
        return {taxon.taxon_id: taxon for taxon in self.taxa}

    @cached_property
    def is_species(self) -> Flags:
        """Whether each taxon is a species, shape (num_taxa,)."""
        return np.array([taxon.rank == "species" for taxon in self.taxa])

    @cached_property
    def grave_harms(self) -> dict[HarmKind, tuple[Flags, Flags, Flags]]:
        """Whether each taxon, genus and family has a taxon that harms gravely, by what one does to be harmed."""
        harms = [harms_of(taxon.scientific_name, taxon.genus) for taxon in self.taxa]
        found = {}
        for kind in get_args(HarmKind):
            grave_T = np.array([any(harm.kind == kind and harm.is_grave for harm in each) for each in harms])
            genera, families = (
                np.bincount(groups.of_taxon[grave_T], minlength=len(groups.names)) > 0
                for groups in (self.genera, self.families)
            )
            found[kind] = grave_T, genera, families
        return found

    @cached_property
    def genera(self) -> "Groups":
        """The taxa grouped by genus; the group "" holds the taxa without one."""
        return Groups.of([taxon.genus for taxon in self.taxa])

    @cached_property
    def families(self) -> "Groups":
        """The taxa grouped by family; the group "" holds the taxa whose family is unknown."""
        return Groups.of([taxon.family for taxon in self.taxa])


class Groups(msgspec.Struct, frozen=True, dict=True):
    """A partition of the taxa into groups, such as genera."""

    names: tuple[str, ...]
    """Distinct names of the groups, sorted."""
    of_taxon: Positions
    """Position of each taxon's group in `names`, shape (num_taxa,)."""

    @cached_property
    def has_name(self) -> Flags:
        """Whether each group has a name; the group "" has none."""
        return np.array([name != "" for name in self.names])

    @classmethod
    def of(cls, names: Sequence[str]) -> "Groups":
        """Groups taxa by `names`, which has one name for each taxon, in the order of the taxa."""
        distinct = sorted(set(names))
        position = {name: index for index, name in enumerate(distinct)}
        return cls(tuple(distinct), np.array([position[name] for name in names], dtype=np.intp))


def label_hash(output_keys: Iterable[str]) -> str:
    """Returns the SHA-256, in hex, of the output keys in order, each followed by a line feed."""
    return hashlib.sha256("".join(f"{key}\n" for key in output_keys).encode()).hexdigest()


def taxon_id_from_name(scientific_name: str) -> str:
    """Derives the id of a taxon from its accepted name: "Carex × alba" -> "carex-x-alba"."""
    return re.sub(r"[^a-z0-9]+", "-", fold(scientific_name.replace("×", "x "))).strip("-")


NameKind = Literal["genus", "family", "accepted", "synonym", "common"]
"""What a name is to a taxon."""
MatchKind = Literal[NameKind, "below", "prefix"]
"""The same; or "below": the text is a name below it; or "prefix": a word of the name starts with the text."""

# A text that is several of these means the first: "Geranium" is the genus, although a Pelargonium has that common name.
# The genus precedes the accepted name, because a taxon of rank genus has the genus as its accepted name.
_KINDS: Final[tuple[NameKind, ...]] = get_args(NameKind)
_SCIENTIFIC: Final = _KINDS[:-1]
_INITIAL: Final = re.compile(r"([^\W\d_]{1,4})\.\s*")  # "H. annuus"


class NameMatch(msgspec.Struct, frozen=True):
    """Why a taxon was found."""

    kind: MatchKind
    """What the query is to the taxon: its accepted name, a synonym, a common name, its genus or family; a name below it
    that the model does not know, such as a subspecies (below); or the start of a word of a name (prefix)."""
    name: str
    """The name that the query matches, as the model writes it."""


class KnownName(msgspec.Struct, frozen=True):
    """What a whole name means."""

    match: NameMatch
    taxa: Positions
    """Positions of its taxa in `Taxonomy.taxa`: all taxa of a genus or family, all that share the name otherwise."""
    kind: NameKind
    """What the name in `match` is to the taxa, also if the text is a name below it."""

    @property
    def is_group(self) -> bool:
        """Whether the name is that of a genus or family, and so may mean species that the model does not know."""
        return self.kind in {"genus", "family"}


class FoundTaxon(msgspec.Struct, frozen=True):
    """A taxon that a search found; `match` is None if the search text was empty."""

    taxon: Taxon
    match: NameMatch | None


class TaxaChoice(msgspec.Struct, frozen=True):
    """The taxa that several names mean together."""

    chosen_T: Flags
    """Whether each taxon is chosen, in the order of `Taxonomy.taxa`."""
    unknown: tuple[str, ...]
    """The names that mean no taxon."""
    below: dict[str, str] = {}
    """Name below what the model knows -> the species or genus that was chosen for it."""


class TaxonNames:
    """The names of all taxa of a taxonomy, parsed once: 5,337 taxa take a third of a second."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self.taxonomy = taxonomy
        # Normalized name -> kind, name as written, and position of each taxon that has it.
        self._meanings: dict[str, list[tuple[NameKind, str, int]]] = {}
        words: list[tuple[Taxon, str]] = []
        for position, taxon in enumerate(taxonomy.taxa):
            folded = [(kind, name, fold_name(name)) for kind, name in _names(taxon)]
            for kind, name, key in (*folded, ("accepted", taxon.scientific_name, taxon.taxon_id)):
                keys = {key} if kind not in {"accepted", "synonym"} else {key, *parse_name(name, scientific=True).keys}
                for each in keys:
                    self._meanings.setdefault(each, []).append((kind, name, position))
            # A space precedes every word.
            words.append((taxon, "".join(f" {key}\n" for _, _, key in folded)))
        self._words = sorted(words, key=lambda each: each[0].scientific_name)

    def find(self, text: str) -> KnownName | None:
        """Finds what a whole name means: the one way from a written name to taxa.

        The text is a name of the model or a taxon id; else it is read as a scientific name: with author, rank,
        "spp.", or an abbreviated genus ("H. annuus") if that means one taxon, in the form of a class folder, such as
        "001_common_(scientific)". A name below what the model knows means the species or genus that it belongs to.

        If the text is a name of several kinds, it means the first of genus, family, accepted name, synonym and
        common name.
        """
        plain = without_number(text)
        return (
            self._known(fold_name(text), _KINDS)
            or self._known(fold_name(plain), _KINDS)
            or self._read(split_class_name(plain)[0])
            or self._known(fold_name(split_brackets(plain)[1]), ("common",))
        )

    def choose(self, names: Iterable[str]) -> TaxaChoice:
        """Chooses all taxa that any of the names means."""
        found = {name: self.find(name) for name in names}
        chosen_T = np.zeros(len(self.taxonomy.taxa), dtype=np.bool_)
        below = {}
        for name, known in found.items():
            if known is not None:
                chosen_T[known.taxa] = True
                if known.match.kind == "below":
                    below[name] = known.match.name
        return TaxaChoice(chosen_T, tuple(name for name, known in found.items() if known is None), below)

    def search(self, text: str, limit: int = 20) -> list[FoundTaxon]:
        """Finds at most `limit` taxa, sorted: what the text means, and names with a word that starts with it.

        The text "" finds all.
        """
        wanted = fold_name(text)
        known = self.find(text) if wanted else None
        meant = set() if known is None else {self.taxonomy.taxa[position].taxon_id for position in known.taxa}
        found = [taxon for taxon, words in self._words if f" {wanted}" in words or taxon.taxon_id in meant][:limit]
        meaning = None if known is None else known.match
        return [FoundTaxon(taxon, _match(taxon, wanted, meaning) if wanted else None) for taxon in found]

    def _known(self, key: str, kinds: Sequence[NameKind]) -> KnownName | None:
        meanings = [each for each in self._meanings.get(key, ()) if each[0] in kinds]
        if not meanings:
            return None
        first, name, _ = min(meanings, key=lambda each: _KINDS.index(each[0]))
        positions = [position for kind, _, position in meanings if kind == first]
        return KnownName(NameMatch(first, name), np.unique(np.array(positions, dtype=np.intp)), first)

    def _read(self, text: str) -> KnownName | None:
        """Finds what a scientific name means."""
        name = parse_name(text, scientific=True)
        if initial := _INITIAL.match(name.genus):
            name = parse_name(f"{initial[1]} {name.genus[initial.end() :]}", scientific=True)
        if initial or len(name.genus) == 1:
            name = self._spelt_out(name)
        found = self._known(name.key, _SCIENTIFIC)
        if (name.part_of_genus or found is None) and (found := self._known(name.species.key, _SCIENTIFIC)):
            return msgspec.structs.replace(found, match=NameMatch("below", found.match.name))
        return found

    def _spelt_out(self, name: PlantName) -> PlantName:
        """Returns a name with an abbreviated genus in full, if it is that of one taxon."""
        fitting = {
            (position, key.partition(" ")[0])
            for key, meanings in self._meanings.items()
            if name.epithet and key.startswith(name.genus.lower()) and key.partition(" ")[2] == name.epithet
            for kind, _, position in meanings
            if kind in _SCIENTIFIC
        }
        genus = next((genus for _, genus in fitting), "") if len({taxon for taxon, _ in fitting}) == 1 else name.genus
        return msgspec.structs.replace(name, genus=genus)


def _match(taxon: Taxon, wanted: str, meaning: NameMatch | None) -> NameMatch | None:
    """Gives the first name of a taxon that is the text, else the first with a word that starts with it, else `meaning`.

    Of the names that start with it, those of the taxon itself precede those of its genus and family.
    """
    named = [(kind, name, fold_name(name)) for kind, name in _names(taxon)]
    whole = [NameMatch(kind, name) for kind, name, key in named if key == wanted]
    starting = [(kind, name) for kind, name, key in named if f" {wanted}" in f" {key}"]
    if whole:
        return whole[0]
    if not starting:
        return meaning
    return NameMatch("prefix", min(starting, key=lambda each: each[0] in {"genus", "family"})[1])


def _names(taxon: Taxon) -> Iterable[tuple[NameKind, str]]:
    """Gives all names of a taxon, in the order of `_KINDS`."""
    if taxon.genus:
        yield "genus", taxon.genus
    if taxon.family:
        yield "family", taxon.family
        if older := OLDER_FAMILIES.get(taxon.family):
            yield "family", older
    yield "accepted", taxon.scientific_name
    yield from (("synonym", name) for name in taxon.synonyms)
    yield from (("common", name) for names in (taxon.common_names, *taxon.names.values()) for name in names)
