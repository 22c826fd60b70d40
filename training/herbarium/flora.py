"""Which species are in which data set, and under which name.

Species numbers are taken from one shuffled pool, so that members of a genus are in different data sets, as in reality.
House plants and animals have separate families.
"""

from typing import Final, Self

import msgspec
import numpy as np

from models.errors import DataError
from training.herbarium.names import species_name
from training.herbarium.spelling import author_of, binomial, misspelt, other_spellings
from training.herbarium.traits import SPECIES_PER_FAMILY, SPECIES_PER_GENUS

_FLORA_STREAM: Final = 22
# The names of Pl@ntNet-300K: of 1,081 ids 62 repeat a name, five of them for the third time, and 6 are genera. About
# 255 of its names are in iNaturalist 2021 letter for letter, and 20 more under another name.
_PUBLISHED_IDS: Final = 1081
_PUBLISHED_REPEATS: Final = 62
_PUBLISHED_THIRDS: Final = 5
_PUBLISHED_GENERA: Final = 6
_PUBLISHED_SHARED: Final = 275
_PUBLISHED_RENAMED: Final = 20
_EVERY_HYBRID: Final = 60  # of the names that only Pl@ntNet has
_EVERY_COMMON: Final = 4  # of the house plants' folders


def _portion(count: int, part: int, whole: int) -> int:
    """Returns `part` / `whole` of `count`, at least one."""
    return min(count, max(1, round(count * part / whole)))


def _too_few(name: str, value: int, least: int) -> DataError:
    return DataError(f"{name.replace('_', ' ')} is too small", value=value, limit=f"{least} or more")


class FloraSize(msgspec.Struct, frozen=True, kw_only=True):
    """Number of classes in each data set; by default as many as in the published ones.

    Raises:
        DataError: A number is too small, or more species are shared than a data set has.
    """

    num_inaturalist: int = 4271
    """Plant species in iNaturalist's list."""
    num_plantnet: int = 1081
    """Ids in Pl@ntNet's list, some of them with repeated names."""
    num_house: int = 47
    """Folders of house plants."""
    num_shared: int = 275
    """Species in both iNaturalist's and Pl@ntNet's list."""
    num_animals: int = 6
    """Animals in iNaturalist's list."""
    num_fungi: int = 3
    """Fungi in iNaturalist's list."""
    num_outside: int = 40
    """Species in none of the data sets."""

    def __post_init__(self) -> None:
        for name, least in {"num_inaturalist": 1, "num_plantnet": 3, "num_house": 1}.items():
            if getattr(self, name) < least:
                raise _too_few(name, getattr(self, name), least)
        for name in ("num_shared", "num_animals", "num_fungi", "num_outside"):
            if getattr(self, name) < 0:
                raise _too_few(name, getattr(self, name), 0)
        most = min(self.num_inaturalist, self.num_plantnet_names - self.num_genera)
        if self.num_shared > most:
            raise DataError(
                "more species are shared than a data set has",
                value=self.num_shared,
                limit=f"at most {most}",
                remedy="share fewer",
            )

    @property
    def num_repeats(self) -> int:
        """Pl@ntNet ids with the name of another id, under another author."""
        return _portion(self.num_plantnet, _PUBLISHED_REPEATS, _PUBLISHED_IDS)

    @property
    def num_genera(self) -> int:
        """Pl@ntNet ids that name only a genus."""
        return _portion(self.num_plantnet, _PUBLISHED_GENERA, _PUBLISHED_IDS)

    @property
    def num_renamed(self) -> int:
        """Shared species that Pl@ntNet lists alternately under a synonym and misspelt."""
        return min(self.num_shared, 2 * _portion(self.num_shared, _PUBLISHED_RENAMED // 2, _PUBLISHED_SHARED))

    @property
    def num_plantnet_names(self) -> int:
        """Distinct names among Pl@ntNet's ids."""
        return self.num_plantnet - self.num_repeats

    @property
    def num_outputs(self) -> int:
        """Classes of the three data sets if names are merged within each."""
        return self.num_inaturalist + self.num_plantnet_names + self.num_house

    @property
    def num_taxa(self) -> int:
        """Classes if names are merged across data sets, with the file of synonyms."""
        return self.num_outputs - self.num_shared


FULL_WIDTH: Final = FloraSize()
NARROW: Final = FloraSize(
    num_inaturalist=12, num_plantnet=12, num_house=6, num_shared=4, num_animals=1, num_fungi=1, num_outside=3
)


class PlantnetClass(msgspec.Struct, frozen=True):
    """One id of Pl@ntNet's list."""

    name: str
    """As listed, with its author."""
    species: tuple[int, ...]
    """The species of its pictures; several if the id names only a genus."""


class HousePlant(msgspec.Struct, frozen=True):
    """One folder of house plants."""

    folder: str
    """Name of the folder."""
    species: int
    """The species of its pictures."""


class Synonym(msgspec.Struct, frozen=True):
    """Another name of a species."""

    name: str
    """Genus and epithet."""
    author: str
    species: int
    """The species that it names."""


class Flora(msgspec.Struct, frozen=True, kw_only=True):
    """The classes of every data set. Species are numbers."""

    size: FloraSize
    seed: int
    inaturalist: tuple[int, ...]
    """Plants."""
    animals: tuple[int, ...]
    """Drawn as plants, because preparations leave them out."""
    fungi: tuple[int, ...]
    plantnet: tuple[PlantnetClass, ...]
    """In the order of the ids."""
    house: tuple[HousePlant, ...]
    outside: tuple[int, ...]
    """In no data set: the first half from listed genera or families, the others from other families."""
    synonyms: tuple[Synonym, ...]
    """Names under which Pl@ntNet lists species of iNaturalist."""

    @property
    def species(self) -> tuple[int, ...]:
        """All listed plant species, in ascending order."""
        plantnet = (number for listed in self.plantnet for number in listed.species)
        return tuple(sorted({*self.inaturalist, *plantnet, *(plant.species for plant in self.house)}))


def make_flora(size: FloraSize = FULL_WIDTH, seed: int = 0) -> Flora:
    """Distributes species over the data sets; the same size and seed give the same flora."""
    rng = np.random.default_rng([seed, _FLORA_STREAM])
    num_own = size.num_plantnet_names - size.num_genera - size.num_shared
    num_near = size.num_outside // 2
    pool = _SpeciesPool(size.num_inaturalist + num_own + num_near, rng)
    inaturalist, own, near = pool.take(size.num_inaturalist), pool.take(num_own), pool.take(num_near)
    house = pool.take_from_new_families(size.num_house, apart=SPECIES_PER_GENUS)
    far = pool.take_from_new_families(size.num_outside - num_near, apart=1)
    animals = pool.take_from_new_families(size.num_animals, apart=1)
    fungi = pool.take_from_new_families(size.num_fungi, apart=1)
    shared = inaturalist[: size.num_shared]
    synonyms = _synonyms(shared[: size.num_renamed], pool, seed)
    listed = _listed(shared, own, synonyms, seed)
    plantnet = [PlantnetClass(f"{entry.name} {entry.author}", (entry.species,)) for entry in listed]
    plantnet += _repeats([listed[place] for place in rng.permutation(len(listed))], size.num_repeats)
    plantnet += _genera([*own, *shared], size.num_genera, seed)
    return Flora(
        size=size,
        seed=seed,
        inaturalist=inaturalist,
        animals=animals,
        fungi=fungi,
        plantnet=tuple(plantnet[place] for place in rng.permutation(len(plantnet))),
        house=tuple(_house_plant(place, species, seed) for place, species in enumerate(house)),
        outside=near + far,
        synonyms=synonyms,
    )


class _SpeciesPool:
    """Unused species numbers: a shuffled pool of related species, then separate families."""

    def __init__(self, num_related: int, rng: np.random.Generator) -> None:
        families = -(-num_related // SPECIES_PER_FAMILY)
        self._next_family = families
        self._related = [int(number) for number in rng.permutation(families * SPECIES_PER_FAMILY)]

    def take(self, count: int) -> tuple[int, ...]:
        taken, self._related = self._related[:count], self._related[count:]
        return tuple(taken)

    def take_from_new_families(self, count: int, *, apart: int) -> tuple[int, ...]:
        first = self._next_family * SPECIES_PER_FAMILY
        self._next_family += -(-count * apart // SPECIES_PER_FAMILY)
        return tuple(first + number * apart for number in range(count))


def _synonyms(renamed: tuple[int, ...], pool: _SpeciesPool, seed: int) -> tuple[Synonym, ...]:
    """Returns, alternately, names of unused species and misspelt names."""
    unused = pool.take_from_new_families(len(renamed), apart=1)
    return tuple(
        Synonym(
            binomial(spare, seed) if place % 2 == 0 else misspelt(binomial(species, seed)),
            author_of(spare if place % 2 == 0 else species, seed),
            species,
        )
        for place, (species, spare) in enumerate(zip(renamed, unused, strict=True))
    )


class _Listed(msgspec.Struct, frozen=True):
    """A name of Pl@ntNet's list, without its author."""

    name: str
    author: str
    species: int

    @classmethod
    def of(cls, species: int, seed: int, *, hybrid: bool = False) -> Self:
        return cls(binomial(species, seed, hybrid=hybrid), author_of(species, seed), species)


def _listed(shared: tuple[int, ...], own: tuple[int, ...], synonyms: tuple[Synonym, ...], seed: int) -> list[_Listed]:
    """Returns Pl@ntNet's species without repeats; the first shared ones have their synonyms."""
    hybrids = set(own[::_EVERY_HYBRID]) if len(own) >= _EVERY_HYBRID else set()
    return [
        *(_Listed(other.name, other.author, other.species) for other in synonyms),
        *(_Listed.of(species, seed) for species in shared[len(synonyms) :]),
        *(_Listed.of(species, seed, hybrid=species in hybrids) for species in own),
    ]


def _repeats(listed: list[_Listed], count: int) -> list[PlantnetClass]:
    """Returns names repeated under another author, hybrids first so that one is included; some a third time."""
    num_thirds = count * _PUBLISHED_THIRDS // _PUBLISHED_REPEATS
    chosen = sorted(listed, key=lambda entry: " x " not in entry.name)[: count - num_thirds]
    spellings = [(other_spellings(entry.name, entry.author), (entry.species,)) for entry in chosen]
    seconds = [PlantnetClass(second, species) for (second, _), species in spellings]
    return seconds + [PlantnetClass(third, species) for (_, third), species in spellings[::-1][:num_thirds]]


def _genera(species: list[int], count: int, seed: int) -> list[PlantnetClass]:
    """Returns classes that name only a genus, with its listed species as pictures."""
    members: dict[int, list[int]] = {}
    for number in species:
        members.setdefault(number // SPECIES_PER_GENUS, []).append(number)
    kin = [tuple(sorted(numbers)) for numbers in members.values()][:count]
    return [PlantnetClass(f"{species_name(numbers[0], seed).genus} spp.", numbers) for numbers in kin]


def _house_plant(place: int, species: int, seed: int) -> HousePlant:
    name = species_name(species, seed)
    if place % _EVERY_COMMON != 1:
        return HousePlant(f"{name.common_name} ({name.scientific_name})", species)
    # Alternately two words and one: no two house plants share a genus, so the noun alone is unique.
    return HousePlant(name.common_name if place % (2 * _EVERY_COMMON) == 1 else name.common_name.split()[-1], species)
