"""A flower: whorls of shaded petals around a center.

The axis of the flower is +z and its radius is about 1. Petals are grids. The form of the flower bends them along their
length (a bell up and in, a reflexed flower back), cup and ruffle across it; markings are painted into the grid.
"""

from typing import NamedTuple

import numpy as np

from training.herbarium.geometry import Faces, Floats, grid_faces, join, single_part
from training.herbarium.traits import FlowerTraits, Pigment

PIGMENTS: dict[Pigment, tuple[float, float, float]] = {
    "white": (0.97, 0.96, 0.94),
    "cream": (0.98, 0.93, 0.74),
    "yellow": (0.98, 0.82, 0.14),
    "orange": (0.97, 0.56, 0.12),
    "red": (0.84, 0.13, 0.14),
    "pink": (0.96, 0.60, 0.71),
    "magenta": (0.80, 0.16, 0.50),
    "violet": (0.45, 0.22, 0.67),
    "blue": (0.28, 0.40, 0.86),
    "lilac": (0.74, 0.62, 0.90),
}
_GREEN = np.array([0.46, 0.60, 0.22])
# Angle in degrees above the plane of the flower at the base, the middle and the tip of a petal.
_FORMS = {
    "flat": (22.0, 8.0, -8.0),
    "saucer": (20.0, 30.0, 40.0),
    "cup": (24.0, 54.0, 74.0),
    "bell": (55.0, 92.0, 48.0),
    "trumpet": (80.0, 70.0, 4.0),
    "reflexed": (30.0, -18.0, -62.0),
}
# Exponents of the half-width u^a (1-u)^b, as for leaves.
_TIPS = {
    "round": (0.75, 0.38),
    "acute": (0.75, 0.95),
    "notched": (0.95, 0.26),
    "fringed": (1.0, 0.22),
    "blunt": (0.6, 0.2),
}
# In deep flowers the near petals hide the center, so these have no lift.
_CENTER_LIFT = {"flat": 0.5, "saucer": 0.6, "reflexed": 0.5}


class _Petals(NamedTuple):
    """One row for each petal: azimuth, length and half-width [N]; angles at base, middle and tip [N, 3]; radians."""

    azimuths: Floats
    lengths: Floats
    half_widths: Floats
    bends: Floats


def flower_shape(flower: FlowerTraits, detail_px: float, rng: np.random.Generator) -> Faces:
    """Returns one flower of radius about 1 as one object; `detail_px` is its radius on the canvas."""
    whorls = [_petal_faces(flower, _whorl(flower, number, rng), detail_px, rng) for number in range(flower.num_whorls)]
    center = [_in_front(piece, _CENTER_LIFT.get(flower.form, 0.0)) for piece in _center(flower, detail_px)]
    pieces = [*whorls, *center]
    if flower.form != "reflexed":
        pieces.insert(0, _sepals(detail_px))
    return join(pieces, separate=False)


def _in_front(piece: Faces, lift: float) -> Faces:
    """Moves the center forward in the painting order; otherwise petals of an open flower would cover it."""
    return piece._replace(anchors=piece.anchors + np.array([0.0, 0.0, lift]))


def _whorl(flower: FlowerTraits, number: int, rng: np.random.Generator) -> _Petals:
    count = flower.num_petals
    step = 2 * np.pi / count
    azimuths = -np.pi / 2 + step * (np.arange(count) + 0.5 * number) + rng.normal(0, 0.025, count)
    lengths = (1 - 0.2 * number) * (1 + rng.normal(0, 0.025, count))
    half_widths = np.full(count, min(0.52, 1.25 * np.sin(min(step, 1.9) / 2)) * flower.petal_width) * lengths
    form = np.array(_FORMS[flower.form])
    # Inner petals are more upright, but no petal crosses the axis.
    bends = np.radians(np.minimum(form + 14.0 * number, max(form.max(), 74.0))) + rng.normal(0, 0.04, (count, 3))
    if flower.symmetry == "bilateral":
        lower = np.maximum(-np.sin(azimuths), 0)
        upper = np.maximum(np.sin(azimuths), 0)
        lengths = lengths * (0.78 + 0.32 * lower**2)
        half_widths = half_widths * (0.8 + 0.65 * lower**2)
        bends = bends + np.stack([0 * upper, 0.5 * upper, 0.7 * upper - 0.5 * lower], axis=-1)
    return _Petals(azimuths, lengths, half_widths, bends)


def _petal_faces(flower: FlowerTraits, petals: _Petals, detail_px: float, rng: np.random.Generator) -> Faces:
    rows = int(np.clip(detail_px / 6, 3, 20))
    columns = 2 * int(np.clip(detail_px * petals.half_widths.mean() / 5, 1, 8))
    if flower.petal_tip == "fringed":
        columns = max(columns, 4)
    # Rows are closer near the tip, where the outline curves most.
    steps = np.linspace(0.0, 1.0, rows + 1)
    along, across = np.meshgrid(steps * (1.6 - 0.6 * steps), np.linspace(-1.0, 1.0, columns + 1), indexing="ij")
    points = _petal_points(flower, petals, along, across)
    middles = (along[1:, 1:] + along[:-1, 1:]) / 2, (across[:-1, 1:] + across[:-1, :-1]) / 2
    colors = _petal_colors(flower, *middles)
    # Petals differ slightly in brightness, so that overlapping ones are distinguishable.
    brightness = 1 + rng.normal(0, 0.035, (len(points), 1, 1, 1))
    colors = np.repeat(colors[None], len(points), axis=0) * brightness
    if flower.symmetry == "bilateral":
        lip = (np.sin(petals.azimuths) < -0.8)[:, None, None, None]
        second = np.array(PIGMENTS[flower.second_pigment])
        colors = np.where(lip, colors * 0.45 + second * 0.5, colors)
    return grid_faces(points, colors)


def _petal_points(flower: FlowerTraits, petals: _Petals, along: Floats, across: Floats) -> Floats:
    """Returns points [N, R, C, 3] of all petals of a whorl."""
    radial, height, slope = _spine(petals, along[:, 0])
    rise, fall = _TIPS[flower.petal_tip]
    peak = rise / (rise + fall)
    width = (along + 0.03) ** rise * (1 - along) ** fall / (peak**rise * (1 - peak) ** fall)
    sideways = across * width * petals.half_widths[:, None, None]
    outward, up = radial[:, :, None] + 0 * across, height[:, :, None] + 0 * across
    outward = outward + _tip_shift(flower, along, across) * petals.lengths[:, None, None]
    # The rims of a wide petal bend inward, like a spoon.
    wrap = np.minimum(0.6 * sideways**2 / (0.3 + np.maximum(outward, 0)), 0.6 * np.abs(sideways))
    outward = np.maximum(outward - wrap * np.sin(slope)[:, :, None], 0.02)
    up = up + wrap * np.cos(slope)[:, :, None] + flower.petal_ruffle * np.sin(7 * across + 3 * along) * along**2
    up = up - 0.05 * (1 - np.abs(across)) * width
    cosine, sine = np.cos(petals.azimuths)[:, None, None], np.sin(petals.azimuths)[:, None, None]
    return np.stack([outward * cosine - sideways * sine, outward * sine + sideways * cosine, up], axis=-1)


def _spine(petals: _Petals, along: Floats) -> tuple[Floats, Floats, Floats]:
    """Returns distance from the axis, height, and slope in radians [N, R] of each petal's middle line."""
    base, middle, tip = (petals.bends[:, k : k + 1] for k in range(3))
    slope = base * (1 - along) * (1 - 2 * along) + 4 * middle * along * (1 - along) + tip * along * (2 * along - 1)
    step = np.diff(along, prepend=0.0) * petals.lengths[:, None]
    return 0.04 + np.cumsum(np.cos(slope) * step, axis=1), np.cumsum(np.sin(slope) * step, axis=1), slope


def _tip_shift(flower: FlowerTraits, along: Floats, across: Floats) -> Floats:
    if flower.petal_tip == "notched":
        return np.asarray(-0.24 * along**5 * np.maximum(1 - 1.8 * np.abs(across), 0))
    if flower.petal_tip == "fringed":
        teeth = np.abs((np.arange(across.shape[1]) % 2) * 1.0)
        return np.asarray(-0.13 * along**6 * teeth)
    return np.zeros_like(along)


def _petal_colors(flower: FlowerTraits, along: Floats, across: Floats) -> Floats:
    """Returns colors [R, C, 3]: a darker throat, a paler rim, and the marking of the species."""
    main, second = np.array(PIGMENTS[flower.pigment]), np.array(PIGMENTS[flower.second_pigment])
    amount = _marking_amount(flower, along, across)[..., None]
    colors = main * (1 - amount) + second * 0.92 * amount
    if flower.marking in ("veined", "spotted"):
        colors = main * (1 - 0.42 * amount)
    depth = 1 - 0.42 * np.exp(-along / 0.16) - 0.06 * np.abs(across) ** 3
    return np.asarray(
        np.clip(colors * depth[..., None] + 0.05 * along[..., None] * (1 - np.abs(across))[..., None], 0, 1)
    )


def _marking_amount(flower: FlowerTraits, along: Floats, across: Floats) -> Floats:
    """Returns the strength of the marking, from 0 to 1, at each point of a petal."""
    if flower.marking == "veined":
        veins = np.arange(across.shape[1])[None] % 2 * np.ones_like(along)
        return np.asarray(veins * np.clip(1.15 - along, 0, 1) * 0.75)
    if flower.marking == "eye":
        return np.asarray(1 / (1 + np.exp((along - 0.42) * 24)))
    if flower.marking == "edged":
        return np.asarray(1 / (1 + np.exp((0.78 - np.maximum(np.abs(across) * 0.95, along**1.5)) * 22)))
    if flower.marking == "spotted":
        return np.asarray(
            (np.sin(along * 47.0 + across * 9.0) * np.sin(across * 23.0 - along * 5.0) > 0.42) * (along < 0.7) * 1.0
        )
    if flower.marking == "striped":
        return np.asarray(np.exp(-((across / 0.24) ** 2)) * np.clip(1.3 - along, 0, 1))
    if flower.marking == "shaded":
        return np.asarray(np.clip(1.05 - 1.35 * along, 0, 1) ** 1.3)
    return np.zeros_like(along)


def _sepals(detail_px: float) -> Faces:
    """Returns a green calyx behind the petals, visible from the side."""
    steps = np.linspace(0, 2 * np.pi, 13 if detail_px > 30 else 7)
    rings = np.array([[0.05, -0.24], [0.15, -0.16], [0.17, -0.02], [0.20, 0.05]])
    radius, height = rings[:, :1], rings[:, 1:]
    points = np.stack(np.broadcast_arrays(radius * np.cos(steps), radius * np.sin(steps), height), axis=-1)
    shade = np.linspace(0.8, 1.0, 3)[:, None, None]
    return grid_faces(points[None], _GREEN * shade)


def _center(flower: FlowerTraits, detail_px: float) -> list[Faces]:
    size = flower.center_radius
    second = np.array(PIGMENTS[flower.second_pigment])
    if flower.center == "disc":
        return [_florets(size, 0.35, detail_px, np.array([0.93, 0.68, 0.10]), np.array([0.55, 0.32, 0.06]))]
    if flower.center == "cone":
        return [_florets(size, 1.1, detail_px, np.array([0.78, 0.40, 0.12]), np.array([0.30, 0.15, 0.10]))]
    if flower.center == "boss":
        return [_florets(size * 0.8, 0.8, detail_px, np.array([0.72, 0.78, 0.32]), np.array([0.40, 0.50, 0.18]))]
    if flower.center == "corona":
        return [_corona(size * 1.35, second, detail_px), _stamens(size * 0.9, 5, np.array([0.95, 0.80, 0.30]))]
    return [_stamens(size * 1.7, 9, np.array([0.93, 0.72, 0.18]))]


def _florets(size: float, dome: float, detail_px: float, bright: Floats, dark: Floats) -> Faces:
    """Returns a dome of small diamonds on a Fibonacci spiral, like the florets of sunflowers (Vogel 1979)."""
    count = int(np.clip((detail_px * size) ** 2 / 14, 12, 260))
    index = np.arange(count) + 0.5
    ring = np.sqrt(index / count)
    angle = index * np.pi * (3 - np.sqrt(5))
    height = 0.1 + dome * size * np.sqrt(np.maximum(1 - 0.92 * ring**2, 0))
    middle = np.stack([size * ring * np.cos(angle), size * ring * np.sin(angle), height], axis=-1)
    outward = np.stack([np.cos(angle), np.sin(angle), -dome * ring], axis=-1)
    sideways = np.stack([-np.sin(angle), np.cos(angle), 0 * angle], axis=-1)
    half = size * 1.3 / np.sqrt(count)
    corners = np.stack(
        [middle - half * outward, middle + half * sideways, middle + half * outward, middle - half * sideways], axis=1
    )
    mix = (0.5 + 0.5 * np.cos(np.pi * ring))[:, None] * 0.45 + np.random.default_rng(count).uniform(0, 0.5, (count, 1))
    colors = bright * (1 - mix) + dark * mix
    corners, colors = np.concatenate([_backing(size, dome), corners]), np.concatenate([np.tile(dark, (12, 1)), colors])
    return single_part(corners, colors)


def _backing(size: float, dome: float) -> Floats:
    """Returns dark wedges [12, 4, 3] under the florets, so that no petal is visible between them."""
    angle = np.linspace(0, 2 * np.pi, 13)
    rim = np.stack([size * np.cos(angle), size * np.sin(angle), 0.06 + 0 * angle], axis=-1)
    top = np.tile([0.0, 0.0, 0.06 + 0.6 * dome * size], (12, 1))
    return np.stack([top, rim[:-1], rim[1:], top], axis=1)


def _corona(size: float, color: Floats, detail_px: float) -> Faces:
    steps = np.linspace(0, 2 * np.pi, 25 if detail_px > 40 else 10)
    rows = np.linspace(0, 1, 6 if detail_px > 40 else 3)[:, None]
    radius = size * (0.55 + 0.55 * rows**1.6) * (1 + 0.07 * rows**2 * np.cos(8 * steps))
    height = 0.04 + 1.5 * size * rows + 0 * steps
    points = np.stack([radius * np.cos(steps), radius * np.sin(steps), height], axis=-1)
    shade = np.linspace(0.62, 1.06, len(rows) - 1)[:, None, None]
    return grid_faces(points[None], np.clip(color * shade, 0, 1))


def _stamens(size: float, count: int, color: Floats) -> Faces:
    """Returns filaments that spread from the middle, each with an anther, around a green pistil."""
    angle = np.arange(count) * 2 * np.pi / count + 0.2
    reach = size * (0.75 + 0.25 * (np.arange(count) % 2))
    tip = np.stack([reach * np.cos(angle), reach * np.sin(angle), 0.12 + 0.9 * size + 0 * angle], axis=-1)
    side = np.stack([-np.sin(angle), np.cos(angle), 0 * angle], axis=-1) * 0.014
    root = np.tile([0.0, 0.0, 0.06], (count, 1))
    filament = np.stack([root - side, tip - side, tip + side, root + side], axis=1)
    out = np.stack([np.cos(angle), np.sin(angle), 0.3 + 0 * angle], axis=-1) * 0.055
    lift = np.array([0.0, 0.0, 0.01])
    anther = np.stack([tip - out, tip + side * 3.2, tip + out, tip - side * 3.2], axis=1) + lift
    turn = np.linspace(0, 2 * np.pi, 9)
    rim = np.stack([0.07 * np.cos(turn), 0.07 * np.sin(turn), 0.1 + 0 * turn], axis=-1)
    top = np.tile([0.0, 0.0, 0.16], (8, 1))
    pistil = np.stack([top, rim[:-1], rim[1:], top], axis=1)
    colors = np.concatenate(
        [np.tile(_GREEN * 1.35, (count, 1)), np.tile(_GREEN * 1.1, (8, 1)), np.tile(color, (count, 1))]
    )
    return single_part(np.concatenate([filament, pistil, anther]), np.clip(colors, 0, 1))
