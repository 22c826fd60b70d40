"""The backdrop: sky, meadow, soil, a wall, out-of-focus lights, a sheet of paper, or a room.

Backdrops are painted at 128 px with NumPy for every size of picture, then blurred and enlarged: they are out of focus
anyway, and the scene is the same at every size.
"""

from typing import Final, Literal

import numpy as np
from PIL import Image, ImageFilter

from training.herbarium.flowers import PIGMENTS
from training.herbarium.geometry import Floats

Backdrop = Literal["sky", "meadow", "soil", "wall", "bokeh", "plain", "room"]
OUTDOORS: Final[tuple[Backdrop, ...]] = ("sky", "meadow", "soil", "wall", "bokeh")
# Near enough for the shadow of the plant.
SHADOWED: Final[frozenset[Backdrop]] = frozenset({"soil", "wall", "room"})
# Backdrop -> radius of the blur, px of the painting.
_BLURS: Final = {"sky": 1.0, "meadow": 1.6, "soil": 0.8, "wall": 0.6, "bokeh": 0.8, "plain": 0.8, "room": 2.2}

_SIDE: Final = 128
_ROWS, _COLUMNS = np.mgrid[0:_SIDE, 0:_SIDE] / (_SIDE - 1)


def paint_backdrop(kind: Backdrop, size_px: int, rng: np.random.Generator) -> Image.Image:
    """Returns a square RGB picture."""
    painter = {
        "sky": _sky,
        "meadow": _meadow,
        "soil": _soil,
        "wall": _wall,
        "bokeh": _bokeh,
        "plain": _plain,
        "room": _room,
    }[kind]
    pixels = np.round(np.clip(painter(rng), 0, 1) * 255).astype(np.uint8)
    picture = Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(_BLURS[kind]))
    return picture.resize((size_px, size_px), Image.Resampling.BICUBIC)


def _noise(rng: np.random.Generator, rows: int, columns: int) -> Floats:
    """Returns smooth noise [128, 128] in about -1..1 with `rows` by `columns` bumps."""
    coarse = Image.fromarray(rng.normal(0, 0.5, (rows, columns)).astype(np.float32))
    return np.asarray(coarse.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC), dtype=np.float64)


def _gradient(top: Floats, bottom: Floats) -> Floats:
    return np.asarray(top + (bottom - top) * _ROWS[..., None])


def _blend(below: Floats, above: Floats, cover: Floats) -> Floats:
    return np.asarray(below + (above - below) * np.clip(cover, 0, 1)[..., None])


def _sky(rng: np.random.Generator) -> Floats:
    blue = np.array([0.36, 0.58, 0.86]) + rng.normal(0, 0.05, 3)
    sky = _gradient(blue, np.array([0.80, 0.89, 0.96]))
    clouds = _noise(rng, 4, 3) + 0.55 * _noise(rng, 9, 7) + 0.25 * _noise(rng, 20, 16)
    sky = _blend(sky, np.array([0.98, 0.98, 0.98]), 1.6 * (clouds - rng.uniform(-0.1, 0.5)) * (1.1 - 0.6 * _ROWS))
    hills = 0.80 + rng.uniform(-0.03, 0.12) + 0.05 * _noise(rng, 2, 5)[:1]
    far = np.array([0.42, 0.56, 0.44]) + 0.06 * _noise(rng, 12, 12)[..., None]
    return _blend(sky, far, (_ROWS - hills) * 40)


def _meadow(rng: np.random.Generator) -> Floats:
    horizon = rng.uniform(0.02, 0.38)
    tone = rng.uniform(-0.05, 0.05, 3)
    field = _gradient(np.array([0.62, 0.71, 0.38]) + tone, np.array([0.20, 0.34, 0.12]) + tone)
    field = field * (1 + 0.22 * _noise(rng, 10, 26) + 0.16 * _noise(rng, 5, 6))[..., None]
    haze = np.array([0.80, 0.89, 0.95]) + rng.normal(0, 0.03, 3)
    trees = np.array([0.30, 0.43, 0.27]) + 0.07 * _noise(rng, 14, 18)[..., None]
    scene = _blend(field, trees, (horizon - _ROWS) * 30)
    scene = _blend(scene, haze, (horizon - 0.11 + 0.05 * _noise(rng, 2, 9)[:1] - _ROWS) * 26)
    rows = horizon + (1 - horizon) * rng.uniform(0.1, 1, 22) ** 1.3
    radii = 0.008 + 0.03 * (rows - horizon)
    return _add_spots(scene, (rng.uniform(0, 1, 22), rows), radii, _some_pigments(rng, 22, 2), 0.75)


def _soil(rng: np.random.Generator) -> Floats:
    brown = np.array([0.43, 0.35, 0.27]) + rng.normal(0, 0.018, 3)
    grain = 0.25 * _noise(rng, 6, 6) + 0.20 * _noise(rng, 20, 26) + 0.16 * _noise(rng, 50, 70)
    ground = _gradient(brown * 1.12, brown * 0.9) * (1 + grain)[..., None]
    count = 46
    rows = rng.uniform(0.05, 1.05, count)
    stones = np.array([0.52, 0.47, 0.41]) * rng.uniform(0.6, 1.35, (count, 1))
    sizes = 0.006 + 0.022 * rows * rng.uniform(0.2, 1, count)
    ground = _add_spots(ground, (rng.uniform(0, 1, count), rows), sizes, stones, 0.8)
    edge = rng.uniform(-0.1, 0.35) + 0.04 * _noise(rng, 2, 6)[:1]
    green = np.array([0.30, 0.42, 0.20]) * (1 + 0.35 * _noise(rng, 12, 14))[..., None]
    return _blend(ground, green, (edge - _ROWS) * 12)


def _wall(rng: np.random.Generator) -> Floats:
    tones = np.array(
        [[0.85, 0.80, 0.72], [0.66, 0.42, 0.33], [0.62, 0.61, 0.59], [0.76, 0.70, 0.60], [0.58, 0.66, 0.70]]
    )
    base = tones[int(rng.integers(len(tones)))] + rng.normal(0, 0.02, 3)
    plaster = 1 + 0.06 * _noise(rng, 5, 5) + 0.05 * _noise(rng, 30, 30) + 0.05 * _noise(rng, 90, 90)
    wall = base * plaster[..., None] * np.ones((_SIDE, _SIDE, 1))
    if rng.uniform() < 0.55:
        courses = int(rng.integers(6, 11))
        course = np.floor(_ROWS * courses)
        brick = _COLUMNS * courses / 2 + 0.5 * (course % 2)
        tone = rng.normal(0, 0.09, (courses + 1, courses + 2))[course.astype(int), np.floor(brick).astype(int)]
        joint = np.minimum((_ROWS * courses) % 1, 2 * (brick % 1)) < 0.1
        wall = wall * (1 + tone)[..., None]
        wall = _blend(wall, base * 0.55 + 0.3, joint * 0.8)
    return np.asarray(wall * (1.05 - 0.18 * _ROWS[..., None]))


def _bokeh(rng: np.random.Generator) -> Floats:
    dark = np.array([0.14, 0.22, 0.11]) * rng.uniform(0.5, 1.6) + rng.uniform(0, 0.07, 3)
    scene = _gradient(dark * 1.7 + 0.06, dark) * (1 + 0.45 * _noise(rng, 4, 4))[..., None]
    count = int(rng.integers(12, 26))
    leafy = np.array([0.60, 0.74, 0.34]) * rng.uniform(0.6, 1.2, (count, 1))
    colors = np.where(rng.uniform(0, 1, (count, 1)) < 0.62, leafy, _some_pigments(rng, count, 3))
    radii = rng.uniform(0.03, 0.12, count)
    return _add_spots(scene, (rng.uniform(0, 1, count), rng.uniform(0, 1, count)), radii, colors, 0.34)


def _plain(rng: np.random.Generator) -> Floats:
    """Paints paper, cloth or shade in one color, which may be close to that of a petal."""
    tones = np.array(
        [[0.88, 0.87, 0.84], [0.16, 0.17, 0.16], [0.55, 0.58, 0.56], [0.30, 0.40, 0.22], [0.74, 0.70, 0.6]]
    )
    cast = _some_pigments(rng, 1, 1)[0] * rng.uniform(0.3, 1)
    tone = tones[int(rng.integers(len(tones)))] + rng.normal(0, 0.03, 3)
    tone = tone + (cast - tone) * rng.uniform(0, 0.4)
    return _gradient(tone * 1.06, tone * 0.9) * (1 + 0.10 * _noise(rng, 3, 3) + 0.03 * _noise(rng, 60, 60))[..., None]


def _room(rng: np.random.Generator) -> Floats:
    """Paints a wall with a window, things on a shelf, and the table below the plant."""
    tones = np.array([[0.86, 0.80, 0.70], [0.72, 0.66, 0.60], [0.62, 0.66, 0.58], [0.80, 0.64, 0.54], [0.5, 0.5, 0.54]])
    tone = tones[int(rng.integers(len(tones)))] + rng.normal(0, 0.02, 3)
    scene = _gradient(tone * 1.03, tone * 0.86) * (1 + 0.06 * _noise(rng, 3, 3))[..., None]
    left, right = rng.uniform(-0.2, 0.75) + np.array([0.0, rng.uniform(0.25, 0.5)])
    sill = rng.uniform(0.4, 0.75)
    pane = np.minimum(np.minimum(_COLUMNS - left, right - _COLUMNS), sill - _ROWS) * 40
    daylight = np.array([0.88, 0.93, 0.98]) * (1 + 0.08 * _noise(rng, 4, 4))[..., None]
    scene = _blend(scene, daylight, pane * (np.abs(_COLUMNS - (left + right) / 2) > 0.012))
    shelf = rng.uniform(0.35, 0.7)
    places = rng.uniform(0, 1, 7), shelf - rng.uniform(0.02, 0.06, 7)
    scene = _add_spots(scene, places, rng.uniform(0.03, 0.08, 7), _some_pigments(rng, 7, 4) * 0.75, 0.8)
    wood = np.array([0.50, 0.34, 0.22]) * rng.uniform(0.6, 1.5) * (1 + 0.12 * _noise(rng, 30, 3))[..., None]
    return _blend(scene, wood, (_ROWS - rng.uniform(0.78, 0.95)) * 30)


def _some_pigments(rng: np.random.Generator, count: int, kinds: int) -> Floats:
    """Returns colors [count, 3] of other flowers, so that the plant's color is not unique in the picture."""
    table = np.array(list(PIGMENTS.values()))
    return np.asarray(table[rng.integers(len(table), size=kinds)][rng.integers(kinds, size=count)])


def _add_spots(scene: Floats, places: tuple[Floats, Floats], radii: Floats, colors: Floats, cover: float) -> Floats:
    """Blends discs with soft edges into a scene, at `places` (x and y)."""
    scene = scene.copy()
    for x, y, radius, color in zip(*places, radii, colors, strict=True):
        top, bottom = (int(np.clip((y + sign * radius * 1.3) * _SIDE, 0, _SIDE)) for sign in (-1, 1))
        left, right = (int(np.clip((x + sign * radius * 1.3) * _SIDE, 0, _SIDE)) for sign in (-1, 1))
        window = np.s_[top : bottom + 1, left : right + 1]
        distance = np.hypot(_ROWS[window] - y, _COLUMNS[window] - x) / radius
        # A bright rim, as around out-of-focus lights.
        alpha = cover * np.clip((1 - distance) * 6, 0, 1) * (0.85 + 0.3 * distance**4)
        scene[window] = _blend(scene[window], color, alpha)
    return scene
