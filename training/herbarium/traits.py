"""The traits of an invented species: its appearance as a few parameters.

Traits are inherited as in nature. A family determines the structure of the flower and the arrangement of leaves, a
genus the kind of leaf, inflorescence and color, and a species the details. Every trait is chosen from a short list or a
narrow range that all species share, so only the combination of traits identifies a species.
"""

from typing import Final, Literal, TypeVar, get_args

import msgspec
import numpy as np

from models.errors import InputError

SPECIES_PER_GENUS: Final = 4
SPECIES_PER_FAMILY: Final = 4 * SPECIES_PER_GENUS

Pigment = Literal["white", "cream", "yellow", "orange", "red", "pink", "magenta", "violet", "blue", "lilac"]
BladeShape = Literal[
    "linear", "lanceolate", "ovate", "obovate", "elliptic", "deltoid", "cordate", "orbicular", "palmate"
]
Composition = Literal["simple", "pinnate", "trifoliate", "digitate"]
Margin = Literal["entire", "serrate", "dentate", "crenate", "lobed", "undulate"]
Venation = Literal["pinnate", "parallel", "palmate"]
Arrangement = Literal["alternate", "opposite", "whorled", "rosette"]
Symmetry = Literal["radial", "bilateral"]
FlowerForm = Literal["flat", "saucer", "cup", "bell", "trumpet", "reflexed"]
PetalTip = Literal["round", "acute", "notched", "fringed", "blunt"]
Marking = Literal["plain", "veined", "eye", "edged", "spotted", "striped", "shaded"]
Center = Literal["disc", "cone", "stamens", "boss", "corona"]
Inflorescence = Literal["solitary", "raceme", "spike", "umbel", "corymb", "panicle", "globe", "whorls"]
Growth = Literal["upright", "branching", "clump", "arching"]

# Separate random streams for the ranks; changing a number changes every species.
_FAMILY_STREAM: Final = 11
_GENUS_STREAM: Final = 12
_SPECIES_STREAM: Final = 13

# White, yellow and pink are most frequent, as in meadows, so that a color says little about the species.
_COMMON_PIGMENTS: tuple[Pigment, ...] = (*get_args(Pigment), "white", "white", "yellow", "yellow", "pink", "pink")
_Option = TypeVar("_Option")


class LeafTraits(msgspec.Struct, frozen=True):
    """Foliage. Lengths are fractions of the height of the plant."""

    shape: BladeShape
    composition: Composition
    margin: Margin
    venation: Venation
    arrangement: Arrangement
    num_teeth: int
    num_leaflets: int
    num_nodes: int
    length: float
    width: float  # of the blade, as a fraction of its length
    arch: float  # bend of the blade along its length, radians
    hue: float  # 0 is a yellowish green, 1 a bluish one


class FlowerTraits(msgspec.Struct, frozen=True):
    """One flower. `radius` is a fraction of the plant's height, `petal_width` of the petal's length."""

    symmetry: Symmetry
    form: FlowerForm
    num_petals: int
    num_whorls: int
    petal_width: float
    petal_tip: PetalTip
    petal_ruffle: float
    marking: Marking
    pigment: Pigment
    morph: Pigment  # color of some plants of the species instead, as in foxgloves and crocuses
    second_pigment: Pigment  # of markings and coronas
    center: Center
    center_radius: float  # fraction of the radius of the flower
    radius: float


class HabitTraits(msgspec.Struct, frozen=True):
    """Growth, stems and inflorescence."""

    growth: Growth
    num_stems: int
    stem_width: float  # fraction of the height of the plant
    stem_redness: float  # 0 is green, 1 is wine red
    inflorescence: Inflorescence
    num_flowers: int  # on each stem
    nodding: float  # 0 faces the sky, 1 hangs down


class PlantTraits(msgspec.Struct, frozen=True):
    """The traits that all pictures of a species share."""

    leaf: LeafTraits
    flower: FlowerTraits
    habit: HabitTraits


def species_traits(species: int, seed: int = 0) -> PlantTraits:
    """Returns the traits of one species, which is number `species % 4` of its genus.

    Raises:
        InputError: `species` or `seed` is negative.
    """
    check_not_negative(species=species, seed=seed)
    genus, family = species // SPECIES_PER_GENUS, species // SPECIES_PER_FAMILY
    family_rng = np.random.default_rng([seed, _FAMILY_STREAM, family])
    genus_rng = np.random.default_rng([seed, _GENUS_STREAM, genus])
    species_rng = np.random.default_rng([seed, _SPECIES_STREAM, species])
    prototype = PlantTraits(
        leaf=_genus_leaf(family_rng, genus_rng),
        flower=_genus_flower(family_rng, genus_rng),
        habit=_genus_habit(genus_rng),
    )
    return _vary(prototype, member=species % SPECIES_PER_GENUS, genus_rng=genus_rng, rng=species_rng)


def check_not_negative(**numbers: int) -> None:
    """Raises InputError for the first negative number: seeds of random streams must not be negative."""
    for name, number in numbers.items():
        if number < 0:
            problem = f"{name.replace('_', ' ')} is negative"
            raise InputError(problem, value=number, limit="0 or more", remedy="count from 0")


def _pick(rng: np.random.Generator, options: tuple[_Option, ...]) -> _Option:
    return options[int(rng.integers(len(options)))]


def _genus_leaf(family_rng: np.random.Generator, rng: np.random.Generator) -> LeafTraits:
    arrangements: tuple[Arrangement, ...] = ("alternate", "alternate", "opposite", "opposite", "whorled", "rosette")
    compositions: tuple[Composition, ...] = ("simple", "simple", "simple", "pinnate", "trifoliate", "digitate")
    arrangement = _pick(family_rng, arrangements)
    composition = _pick(rng, compositions)
    shape: BladeShape = (
        _pick(rng, get_args(BladeShape)) if composition == "simple" else _pick(rng, ("ovate", "elliptic", "obovate"))
    )
    return LeafTraits(
        shape=shape,
        composition=composition,
        margin="entire",
        venation=_venation_of(shape),
        arrangement=arrangement,
        num_teeth=int(rng.integers(4, 9)),
        num_leaflets=int(rng.integers(2, 6)) * 2 + 1 if composition == "pinnate" else int(rng.choice([5, 7])),
        num_nodes=int(rng.integers(5, 9)),
        length=rng.uniform(0.27, 0.40),
        width=_blade_width(shape) * rng.uniform(0.8, 1.25),
        arch=rng.uniform(0.1, 1.3),
        hue=rng.uniform(),
    )


def _venation_of(shape: BladeShape) -> Venation:
    if shape == "linear":
        return "parallel"
    return "palmate" if shape in ("cordate", "orbicular", "palmate") else "pinnate"


def _blade_width(shape: BladeShape) -> float:
    return {"linear": 0.09, "lanceolate": 0.22, "deltoid": 0.6, "cordate": 0.9, "orbicular": 1.0, "palmate": 1.0}.get(
        shape, 0.42
    )


def _genus_flower(family_rng: np.random.Generator, rng: np.random.Generator) -> FlowerTraits:
    symmetry: Symmetry = "bilateral" if family_rng.uniform() < 0.2 else "radial"
    forms: tuple[FlowerForm, ...] = ("flat", "saucer") if symmetry == "bilateral" else get_args(FlowerForm)
    num_petals = 5 if symmetry == "bilateral" else int(family_rng.choice([3, 4, 5, 5, 6, 8, 13, 21]))
    form = _pick(rng, forms if 3 < num_petals < 13 else ("flat", "saucer", "reflexed"))
    centers: tuple[Center, ...] = (
        ("disc", "disc", "cone") if num_petals >= 13 else ("stamens", "stamens", "boss", "corona", "disc")
    )
    pigment = _pick(rng, _COMMON_PIGMENTS)
    return FlowerTraits(
        symmetry=symmetry,
        form=form,
        num_petals=num_petals,
        num_whorls=1,
        petal_width=rng.uniform(0.8, 1.25),
        petal_tip="round",
        petal_ruffle=float(rng.choice([0.0, 0.0, 0.03, 0.07])),
        marking="plain",
        pigment=pigment,
        morph=pigment,
        second_pigment=_pick(rng, ("white", "yellow", "violet")),
        center=_pick(rng, centers),
        center_radius=rng.uniform(0.26, 0.4) if num_petals >= 13 else rng.uniform(0.14, 0.24),
        radius=rng.uniform(0.15, 0.22),
    )


def _genus_habit(rng: np.random.Generator) -> HabitTraits:
    inflorescence: Inflorescence = _pick(rng, ("solitary", "solitary", "solitary", *get_args(Inflorescence)))
    return HabitTraits(
        growth=_pick(rng, get_args(Growth)),
        num_stems=int(rng.integers(2, 5)),
        stem_width=rng.uniform(0.012, 0.022),
        stem_redness=float(rng.choice([0.0, 0.0, 0.35, 0.8])),
        inflorescence=inflorescence,
        num_flowers=int(rng.integers(7, 20)),
        nodding=float(rng.choice([0.1, 0.25, 0.4, 0.8])),
    )


def _vary(plant: PlantTraits, *, member: int, genus_rng: np.random.Generator, rng: np.random.Generator) -> PlantTraits:
    """Varies the details of one member of a genus.

    Margin, petal tip and marking do not repeat within a genus, so its members always differ in these three.
    """
    margins, tips, markings = (genus_rng.permutation(get_args(kind))[member] for kind in (Margin, PetalTip, Marking))
    return PlantTraits(
        leaf=_vary_leaf(plant.leaf, margins, rng),
        flower=_vary_flower(plant.flower, tips, markings, rng),
        habit=_vary_habit(plant.habit, rng),
    )


def _vary_leaf(leaf: LeafTraits, margin: Margin, rng: np.random.Generator) -> LeafTraits:
    shape: BladeShape = leaf.shape
    if rng.uniform() < 0.3 and leaf.venation == "pinnate":
        shape = _pick(rng, ("lanceolate", "ovate", "obovate", "elliptic", "deltoid"))
    return msgspec.structs.replace(
        leaf,
        shape=shape,
        margin="undulate" if shape == "linear" and margin != "entire" else str(margin),
        num_teeth=3 if margin == "lobed" else leaf.num_teeth,
        num_nodes=max(3, leaf.num_nodes + int(rng.integers(-2, 3))),
        length=leaf.length * rng.uniform(0.75, 1.25),
        width=leaf.width * rng.uniform(0.75, 1.3),
        arch=leaf.arch * rng.uniform(0.7, 1.3),
    )


def _vary_flower(flower: FlowerTraits, tip: PetalTip, marking: Marking, rng: np.random.Generator) -> FlowerTraits:
    # About half of the genus keeps its color, the others take that of another genus, so color alone misleads.
    pigment: Pigment = flower.pigment if rng.uniform() < 0.5 else _pick(rng, _COMMON_PIGMENTS)
    extra = int(rng.integers(-1, 2)) if flower.num_petals in (5, 6, 8) and flower.symmetry == "radial" else 0
    return msgspec.structs.replace(
        flower,
        num_petals=flower.num_petals + extra,
        num_whorls=2 if rng.uniform() < 0.25 and flower.symmetry == "radial" else 1,
        petal_width=flower.petal_width * rng.uniform(0.7, 1.25),
        petal_tip=str(tip),
        marking=str(marking),
        pigment=pigment,
        morph=_pick(rng, _COMMON_PIGMENTS),
        center_radius=flower.center_radius * rng.uniform(0.85, 1.2),
        radius=flower.radius * rng.uniform(0.85, 1.2),
    )


def _vary_habit(habit: HabitTraits, rng: np.random.Generator) -> HabitTraits:
    inflorescence: Inflorescence = habit.inflorescence
    if rng.uniform() < 0.25:
        inflorescence = _pick(rng, get_args(Inflorescence))
    return msgspec.structs.replace(
        habit,
        inflorescence=inflorescence,
        num_flowers=max(5, habit.num_flowers + int(rng.integers(-3, 6))),
        growth=habit.growth if rng.uniform() < 0.7 else _pick(rng, get_args(Growth)),
    )
