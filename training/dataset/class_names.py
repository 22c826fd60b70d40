"""The class names of all data sets, parsed: what each name means, and the key that equal names share.

Every written name becomes a key (`training.dataset.names`). A recipe may correct the name, and a taxonomy file
(`training.dataset.synonyms`) may replace the key by that of the accepted name.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from models.errors import DataError
from models.taxonomy import fold, taxon_id_from_name
from training.dataset.names import PlantName, parse_name
from training.dataset.sources.record import SourceClass
from training.dataset.synonyms import AcceptedName

Corrections = Mapping[str, Mapping[str, str]]
"""Source -> name (or class id) as written -> scientific name: the `names` tables of a collection."""
Synonyms = Mapping[str, Sequence[AcceptedName]]
"""Key of a name -> its accepted name; several if the name is ambiguous."""


class WrittenName(msgspec.Struct, frozen=True, order=True):
    """A class as its data set names it."""

    source: str
    """Name of the data set."""
    name: str
    """As written there."""


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
    def written(self) -> WrittenName:
        """The class as its data set names it."""
        return WrittenName(self.source, self.plant.name)

    @property
    def accepted(self) -> AcceptedName | None:
        """The accepted name, if the taxonomy file gives exactly one."""
        return self.candidates[0] if len(self.candidates) == 1 else None


def names_to_look_up(classes: Mapping[str, Iterable[SourceClass]], corrections: Corrections | None = None) -> set[str]:
    """Returns the keys of all names, for `read_synonyms`.

    Common names are included: a taxonomy file knows that "Aloe Vera" is a species and that "Venus Flytrap" is not.

    Raises:
        DataError: As `parse_class_names`.
    """
    return {named.name.key for named in parse_class_names(classes, corrections or {}, {})}


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
