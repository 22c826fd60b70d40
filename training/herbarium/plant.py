"""A whole plant: stems from the ground, leaves on their nodes, flowers at their ends.

A plant grows at the origin, has a height of about 1 and is seen from the front. Differences between plants of a species
(how a stem leans, where a leaf points) come from the random stream of the picture.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from training.herbarium.flowers import flower_shape
from training.herbarium.geometry import Bools, Faces, Floats, frames_facing, join, place, ribbon
from training.herbarium.leaves import leaf_shape
from training.herbarium.traits import HabitTraits, PlantTraits

_GOLDEN_ANGLE: Final = 2.39996  # radians between successive leaves of a spiral
_STEM_GREEN = np.array([0.38, 0.52, 0.20])
_STEM_RED = np.array([0.46, 0.17, 0.18])


class Plant(NamedTuple):
    """Foliage and flowers, separate because a picture may focus on the flowers."""

    foliage: Faces
    flowers: Faces


class Scale(NamedTuple):
    """The detail that a picture needs.

    `px_per_unit` is the height of the plant on the canvas. `face_budget` is the maximum number of faces of all leaves,
    and of all flowers. `in_view` returns which of points [N, 3], with objects of a given radius around them, are
    visible; the others are left out.
    """

    px_per_unit: float
    face_budget: float
    in_view: Callable[[Floats, float], Bools]


class Sketch(NamedTuple):
    """The positions of the stems and flowers of a plant.

    `origins` and `facing` [N, 3] and `sizes` [N] belong to the flowers; `stems` and `stalks` are paths [K, 3].
    """

    stems: list[Floats]
    stalks: list[Floats]
    origins: Floats
    facing: Floats
    sizes: Floats


class _Blooms(NamedTuple):
    """The flowers of one stem: positions [N, 3], directions [N, 3], sizes [N], and their stalks."""

    origins: Floats
    facing: Floats
    sizes: Floats
    stalks: list[Floats]


def sketch(traits: PlantTraits, rng: np.random.Generator) -> Sketch:
    """Returns the skeleton of one plant, from which a picture chooses its view."""
    stems = _stems(traits, rng)
    blooms = [_blooms(traits, stem, rng) for stem in stems]
    origins, facing, sizes = (np.concatenate([bloom[k] for bloom in blooms]) for k in range(3))
    return Sketch(stems, [stalk for bloom in blooms for stalk in bloom.stalks], origins, facing, sizes)


def grow(traits: PlantTraits, frame: Sketch, scale: Scale, rng: np.random.Generator) -> Plant:
    """Returns the plant for the skeleton that `sketch` returned."""
    width = traits.habit.stem_width
    green = _STEM_GREEN + (_STEM_RED - _STEM_GREEN) * traits.habit.stem_redness
    ribbons = [ribbon(stem, np.linspace(width, 0.55 * width, len(stem)), green) for stem in frame.stems]
    stalks = [ribbon(path, np.full(len(path), 0.42 * width), green) for path in frame.stalks]
    leaves = _leaves(traits, frame.stems, scale, rng)
    flowers = _flowers(traits, frame, scale, rng)
    return Plant(join([*ribbons, *stalks, *leaves], separate=True), flowers)


def _stems(traits: PlantTraits, rng: np.random.Generator) -> list[Floats]:
    """Returns paths [K, 3] from the ground (or from another stem) to the tip."""
    habit = traits.habit
    lean = rng.normal(0, 0.07)
    main = _bent(np.zeros(3), np.array([lean + (0.5 if habit.growth == "arching" else 0.0), 0.9, rng.normal(0, 0.05)]))
    if habit.growth in ("upright", "arching") and traits.leaf.arrangement != "rosette":
        return [main]
    angles = rng.uniform(0, 2 * np.pi) + np.arange(habit.num_stems) * _GOLDEN_ANGLE
    heights = 0.9 - 0.14 * np.arange(habit.num_stems) * rng.uniform(0.6, 1.2, habit.num_stems)
    if habit.growth == "branching":
        starts = [main[int(k)] for k in np.linspace(5, 9, habit.num_stems - 1)]
        offsets = [np.array([0.30 * np.sign(np.cos(a)) * rng.uniform(0.7, 1.1), 0.0, 0.12 * np.sin(a)]) for a in angles]
        ends = [
            offset + np.array([start[0], height, 0.0])
            for start, offset, height in zip(starts, offsets, heights[1:], strict=False)
        ]
        return [main, *(_bent(start, end) for start, end in zip(starts, ends, strict=True))]
    spread = 0.16 + 0.10 * habit.num_stems
    sideways = np.linspace(-spread, spread, habit.num_stems) + rng.normal(0, 0.04, habit.num_stems)
    heights = rng.permutation(heights)
    ends = [np.array([x, y, 0.1 * np.sin(a)]) for x, y, a in zip(sideways, heights, angles, strict=True)]
    return [_bent(np.array([0.12 * end[0], 0.0, 0.0]), end) for end in ends]


def _bent(start: Floats, end: Floats) -> Floats:
    """Returns a path [16, 3] that begins upright and leans toward its end."""
    steps = np.linspace(0, 1, 16)[:, None]
    middle = np.array(
        [0.75 * start[0] + 0.25 * end[0], start[1] + 0.62 * (end[1] - start[1]), 0.5 * (start[2] + end[2])]
    )
    return np.asarray((1 - steps) ** 2 * start + 2 * steps * (1 - steps) * middle + steps**2 * end)


def _leaves(traits: PlantTraits, stems: list[Floats], scale: Scale, rng: np.random.Generator) -> list[Faces]:
    leaf = traits.leaf
    nodes = (
        [_rosette(leaf.num_nodes, rng)]
        if leaf.arrangement == "rosette"
        else [_nodes(traits, stem, rng, few=k > 0) for k, stem in enumerate(stems)]
    )
    origins, azimuths, rises, sizes = (np.concatenate(column) for column in zip(*nodes, strict=True))
    count = len(origins)
    rises = rises + rng.normal(0, 0.09, count)
    forward = np.stack([np.cos(rises) * np.cos(azimuths), np.sin(rises), np.cos(rises) * np.sin(azimuths)], axis=-1)
    # The third axis of a frame is the upper side of the leaf; the first runs along the leaf.
    # The upper side is turned slightly to the viewer: flat leaves at eye level would be mere lines.
    side = np.cross(np.array([0.0, 1.0, 0.9]), forward)
    side /= np.linalg.norm(side, axis=-1, keepdims=True) + 1e-9
    frames = np.stack([forward, side, np.cross(forward, side)], axis=-1)
    scales = leaf.length * sizes * rng.uniform(0.88, 1.1, count)
    # Low leaves are in the shade of the others.
    shade = np.clip(0.74 + 0.42 * origins[:, 1], 0.7, 1.06) * (1 + rng.normal(0, 0.04, count))
    common = 1 + rng.normal(0, 0.05, 3) + rng.normal(0, 0.1)
    seen = scale.in_view(origins, 1.4 * leaf.length)
    if not seen.any():
        return []
    shape = _affordable(
        lambda detail: leaf_shape(leaf, detail), leaf.length * scale.px_per_unit, scale.face_budget / seen.sum()
    )
    tints = shade[:, None] * common
    return [place(shape, frames[seen], origins[seen], scales[seen], tints[seen])]


def _rosette(num_nodes: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats, Floats]:
    count = num_nodes + 5
    azimuths = rng.uniform(0, 2 * np.pi) + np.arange(count) * _GOLDEN_ANGLE
    order: Floats = np.linspace(0.0, 1.0, count)
    origins = np.tile(np.array([0.0, 0.015, 0.0]), (count, 1))
    return origins, np.asarray(azimuths, np.float64), 0.25 + 0.9 * order, 1.25 - 0.35 * order


def _nodes(
    traits: PlantTraits, stem: Floats, rng: np.random.Generator, *, few: bool
) -> tuple[Floats, Floats, Floats, Floats]:
    """Returns origins [N, 3], azimuths [N], elevations [N] and sizes [N] of the leaves of one stem."""
    leaf = traits.leaf
    num_nodes = max(2, leaf.num_nodes - 2) if few else leaf.num_nodes
    top = 0.55 if traits.habit.inflorescence in ("raceme", "spike", "panicle", "whorls") else 0.78
    where = np.linspace(0.08 if not few else 0.25, top, num_nodes)
    per_node = {"alternate": 1, "opposite": 2, "whorled": 4}[leaf.arrangement]
    turn = {"alternate": _GOLDEN_ANGLE, "opposite": np.pi / 2, "whorled": np.pi / 4}[leaf.arrangement]
    first = rng.uniform(-0.5, 0.5)
    node = np.repeat(np.arange(num_nodes), per_node)
    around = np.tile(np.arange(per_node), num_nodes) * 2 * np.pi / per_node
    place_on_stem = where[node] * (len(stem) - 1)
    origins = np.stack([np.interp(place_on_stem, np.arange(len(stem)), stem[:, k]) for k in range(3)], axis=-1)
    return origins, first + node * turn + around, 0.35 + 0.5 * where[node], 1.15 - 0.55 * where[node]


def _flowers(traits: PlantTraits, frame: Sketch, scale: Scale, rng: np.random.Generator) -> Faces:
    count = len(frame.sizes)
    bilateral = traits.flower.symmetry == "bilateral"
    spin = rng.normal(0, 0.12, count) if bilateral else rng.uniform(0, 2 * np.pi, count)
    # Most of the variation is per plant, some per flower.
    common = rng.normal(0, 0.05, 3) - abs(rng.normal(0, 0.06))
    tints = 1 + common + rng.normal(0, 0.03, (count, 1)) + rng.normal(0, 0.012, (count, 3))
    layout = int(rng.integers(2**31))
    largest = float(frame.sizes.max())
    seen = scale.in_view(frame.origins, largest)

    def shape_for(detail_px: float) -> Faces:
        return flower_shape(traits.flower, detail_px, np.random.default_rng(layout))

    shape = _affordable(shape_for, largest * scale.px_per_unit, scale.face_budget / seen.sum())
    frames = frames_facing(frame.facing, spin)
    return place(shape, frames[seen], frame.origins[seen], frame.sizes[seen], tints[seen])


def _affordable(make: Callable[[float], Faces], detail_px: float, most_faces: float) -> Faces:
    """Returns a shape with the detail `detail_px`, or coarser if it would have more than `most_faces`."""
    shape = make(detail_px)
    excess = len(shape.parts) / most_faces
    return make(detail_px / excess**0.5) if excess > 1 else shape


def _blooms(traits: PlantTraits, stem: Floats, rng: np.random.Generator) -> _Blooms:
    habit, radius = traits.habit, traits.flower.radius
    if habit.inflorescence == "solitary":
        facing = _gaze(habit, np.zeros((1, 3)), rng)
        return _Blooms(stem[-1:] + 0.0, facing, np.array([radius * rng.uniform(0.92, 1.08)]), [])
    if habit.inflorescence in ("raceme", "spike", "panicle", "whorls"):
        origins, outward, sizes, roots = _along_stem(habit, stem, radius, rng)
    else:
        origins, outward, sizes, roots = _crown(habit, stem, radius, rng)
    stalks = [np.linspace(root, origin, 3) for root, origin in zip(roots, origins, strict=True)]
    return _Blooms(origins, _gaze(habit, outward, rng), sizes, stalks)


def _gaze(habit: HabitTraits, outward: Floats, rng: np.random.Generator) -> Floats:
    """Returns the directions of flowers: away from the stem, up or down by their nodding, and toward the viewer."""
    up = np.array([0.0, 0.75 - 1.5 * habit.nodding, 0.0])
    toward_viewer = np.array([0.0, 0.0, 0.75])
    return np.asarray(outward + up + toward_viewer + rng.normal(0, 0.17, outward.shape))


def _along_stem(
    habit: HabitTraits, stem: Floats, radius: float, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats, Floats]:
    """Returns flowers along the stem, smaller toward the tip: origins, directions, sizes and starts of their stalks."""
    count = habit.num_flowers
    where = np.linspace(0.58, 1.0, count)
    around = rng.uniform(0, 2 * np.pi) + np.arange(count) * _GOLDEN_ANGLE
    if habit.inflorescence == "whorls":
        where = np.repeat(np.linspace(0.6, 1.0, 4), 6)
        count = len(where)
        around = np.arange(count) * 2 * np.pi / 6 + np.repeat([0.0, 0.5, 0.0, 0.5], 6)
    reach = {"raceme": 0.085, "spike": 0.03, "panicle": 0.22, "whorls": 0.05}[habit.inflorescence]
    size = {"raceme": 0.44, "spike": 0.32, "panicle": 0.38, "whorls": 0.32}[habit.inflorescence] * radius
    taper = 1.25 - 1.6 * (where - 0.58)
    outward = np.stack([np.cos(around), 0.1 + 0 * around, np.sin(around)], axis=-1)
    at = where * (len(stem) - 1)
    roots = np.stack([np.interp(at, np.arange(len(stem)), stem[:, k]) for k in range(3)], axis=-1)
    origins = roots + outward * (reach * taper)[:, None] * [1, 1, 0.6] + [0.0, 0.5 * reach, 0.0]
    return origins, outward * 0.9, size * taper, roots


def _crown(
    habit: HabitTraits, stem: Floats, radius: float, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats, Floats]:
    """Returns flowers around the tip of the stem: on a dome (umbel), a flat top (corymb) or a ball (globe)."""
    count = int(habit.num_flowers * (2.0 if habit.inflorescence == "globe" else 1.2))
    lowest = {"umbel": 0.25, "corymb": 0.1, "globe": -0.75}[habit.inflorescence]
    height = np.linspace(1.0, lowest, count)
    around = rng.uniform(0, 2 * np.pi) + np.arange(count) * _GOLDEN_ANGLE
    ring = np.sqrt(np.maximum(1 - height**2, 0))
    outward = np.stack([ring * np.cos(around), height, ring * np.sin(around)], axis=-1)
    reach = {"umbel": 0.20, "corymb": 0.24, "globe": 0.11}[habit.inflorescence]
    origins = stem[-1] + outward * reach
    roots = np.repeat(stem[-1:], count, axis=0)
    if habit.inflorescence == "corymb":
        origins[:, 1] = stem[-1, 1] + 0.04 + 0.05 * height
        roots = np.repeat(stem[-4:-3], count, axis=0)
    size = {"umbel": 0.40, "corymb": 0.42, "globe": 0.28}[habit.inflorescence] * radius
    return origins, outward * 0.9, size * rng.uniform(0.88, 1.12, count), roots
