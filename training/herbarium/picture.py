"""One picture of a plant: pose, light, focus, backdrop.

A picture depends only on (seed, species, picture) and its style. The random numbers are drawn in the same order at
every size, so `size_px` changes the detail of a scene but not its content.
"""

from typing import Final, NamedTuple

import msgspec
import numpy as np
from PIL import Image, ImageFilter

from models.errors import InputError
from training.herbarium.backdrop import SHADOWED, Backdrop, paint_backdrop
from training.herbarium.geometry import Bools, Faces, Floats, lit_colors, paint, painting_order, select, turn
from training.herbarium.photo_styles import PLAIN_STYLE, PhotoStyle
from training.herbarium.plant import Plant, Scale, Sketch, grow, sketch
from training.herbarium.traits import PlantTraits, check_not_negative, species_traits

_SUPERSAMPLING: Final = 2
_PICTURE_STREAM: Final = 14
SMALLEST_PX: Final = 16
_FACE_BUDGET: Final = 5000  # at 256 px; limits the time for inflorescences with many flowers
_SHARE_OF_MORPH: Final = 0.4  # of the plants of a species that have its second flower color


class _View(NamedTuple):
    """How the camera sees the plant; lengths are in widths of the picture."""

    close_up: bool
    scale: float  # picture widths per plant height
    turned: Floats  # [3, 3]
    focus: Floats  # [2], position of the target in the picture, right and down
    look_at: Floats  # [3], the target, in turned axes

    def on_picture(self, points: Floats) -> Floats:
        """Returns the position of turned points [..., 3] in the picture, [..., 2]: right and down in picture widths."""
        offset = (points[..., :2] - self.look_at[:2]) * np.array([1.0, -1.0])
        return np.asarray(self.focus + offset * self.scale)

    def shows(self, points: Floats, reach: float) -> Bools:
        """Returns whether an object with radius `reach` around each of points [N, 3] can be in the picture."""
        middles, margin = self.on_picture(points @ self.turned.T), reach * self.scale
        return np.asarray(((middles > -margin) & (middles < 1 + margin)).all(axis=-1))


class _Light(NamedTuple):
    direction: Floats  # [3] toward the light
    gains: Floats  # [3], brightness and warmth
    shadow: float  # 0..1


def draw_plant(
    species: int, picture: int, *, seed: int = 0, size_px: int = 256, style: PhotoStyle = PLAIN_STYLE
) -> Image.Image:
    """Draws one plant of a species; returns a square RGB picture.

    Args:
        species: Number of the species, from 0.
        picture: Number of the picture of that species, from 0.
        seed: Seed of the flora.
        size_px: Width and height, at least 16.
        style: How pictures are taken.

    Raises:
        InputError: A number is negative, or the size is too small.
    """
    check_not_negative(species=species, picture=picture, seed=seed)
    if size_px < SMALLEST_PX:
        raise InputError("the picture is too small", value=size_px, limit=f"{SMALLEST_PX} px or more")
    rng = np.random.default_rng([seed, _PICTURE_STREAM, species, picture])
    traits = _individual(species_traits(species, seed), rng)
    light, backdrop = _light(style, rng), style.backdrops[int(rng.integers(len(style.backdrops)))]
    frame = sketch(traits, rng)
    view = _view(traits, frame, style, rng)
    canvas_px = size_px * _SUPERSAMPLING
    budget = _FACE_BUDGET * max(1.0, size_px / 256) ** 1.5
    plant = grow(traits, frame, Scale(view.scale * canvas_px, budget, view.shows), rng)
    behind = paint_backdrop(backdrop, size_px, rng)
    layer = _plant_layer(plant, view, light, canvas_px)
    if backdrop in ("meadow", "sky") and not view.close_up:
        _paint_grass(layer, light, rng)
    return _develop(behind, layer.reduce(_SUPERSAMPLING), backdrop, light, rng)


def _individual(traits: PlantTraits, rng: np.random.Generator) -> PlantTraits:
    """Varies one plant of the species: it may have the second flower color, and its green differs."""
    flower, leaf = traits.flower, traits.leaf
    if rng.uniform() < _SHARE_OF_MORPH:
        flower = msgspec.structs.replace(flower, pigment=flower.morph)
    leaf = msgspec.structs.replace(leaf, hue=float(np.clip(leaf.hue + rng.normal(0, 0.4), 0, 1)))
    return PlantTraits(leaf=leaf, flower=flower, habit=traits.habit)


def _light(style: PhotoStyle, rng: np.random.Generator) -> _Light:
    side, height = rng.uniform(-0.9, 0.9), rng.uniform(0.4, 1.0)
    direction = np.array([side, height, 0.75])
    warmth = style.warmth + rng.normal(0, style.warmth_spread)
    gains = rng.uniform(*style.brightness) * np.array([1 + warmth, 1.0, 1 - 1.3 * warmth])
    return _Light(direction / np.linalg.norm(direction), gains, rng.uniform(0.2, 0.6))


def _view(traits: PlantTraits, frame: Sketch, style: PhotoStyle, rng: np.random.Generator) -> _View:
    tilt, roll = rng.normal(0.28, 0.14), rng.normal(0, 0.07)
    about_x = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    about_z = np.array([[np.cos(roll), -np.sin(roll), 0], [np.sin(roll), np.cos(roll), 0], [0, 0, 1]])
    turned = about_z @ about_x
    close_up, chosen = bool(rng.uniform() < style.close_ups), rng.uniform()
    jitter, zoom = rng.normal(0, 0.035, 2), style.zoom * rng.uniform(0.82, 1.12)
    heads, radius = frame.origins @ turned.T, float(frame.sizes.max())
    if close_up:
        target, reach = _closest_subject(heads, radius, chosen)
        return _View(True, 0.42 / reach * zoom, turned, np.array([0.5, 0.48]) + 1.5 * jitter, target)
    stems = np.concatenate(frame.stems) @ turned.T
    sideways = np.concatenate([heads[:, 0] - radius, heads[:, 0] + radius, *(stems[:, :1].T + _leaf_reach(traits))])
    left, right, top = float(sideways.min()), float(sideways.max()), float(heads[:, 1].max()) + radius
    scale = min(0.95 / top, 0.98 / (right - left)) * zoom
    # Anchored at the foot, just below the frame, so that the plant does not float.
    look_at = np.array([0.5 * (left + right), 0.0, 0.0])
    return _View(False, scale, turned, np.array([0.5, 1.02]) + jitter * [1.0, 0.5], look_at)


def _leaf_reach(traits: PlantTraits) -> Floats:
    return 0.7 * traits.leaf.length * np.array([[-1.0], [1.0]])


def _closest_subject(heads: Floats, radius: float, chosen: float) -> tuple[Floats, float]:
    """Returns one of the front flowers, [3], and the radius to show: of that flower, or of its inflorescence."""
    front = heads[np.argsort(-heads[:, 2], kind="stable")]
    target = front[int(chosen * max(1, len(front) // 3))]
    around = float(np.median(np.linalg.norm(heads[:, :2] - target[:2], axis=-1)))
    return target, max(radius, min(2.6 * radius, around + radius, 0.22))


def _plant_layer(plant: Plant, view: _View, light: _Light, canvas_px: int) -> Image.Image:
    """Paints the plant on a transparent RGBA canvas; in a close-up the leaves are out of focus."""
    canvas = Image.new("RGBA", (canvas_px, canvas_px))
    _paint_faces(canvas, plant.foliage, view, light)
    if view.close_up:
        soft = canvas.reduce(2).filter(ImageFilter.GaussianBlur(canvas_px / 230))
        canvas = soft.resize(canvas.size, Image.Resampling.BILINEAR)
    _paint_faces(canvas, plant.flowers, view, light)
    return canvas


def _paint_faces(canvas: Image.Image, faces: Faces, view: _View, light: _Light) -> None:
    turned = turn(faces, view.turned)
    outlines = view.on_picture(turned.corners) * canvas.width
    lowest, highest = outlines.min(axis=1), outlines.max(axis=1)
    inside: Bools = np.all((highest > 0) & (lowest < canvas.width), axis=1)
    order = painting_order(turned)
    order = order[inside[order]]
    paint(canvas, outlines[order], lit_colors(select(turned, order), light.direction))


def _paint_grass(canvas: Image.Image, light: _Light, rng: np.random.Generator) -> None:
    """Paints blades of grass in front of the foot of the plant, which otherwise seems to float."""
    count = 70
    x, height = rng.uniform(-0.05, 1.05, count), rng.uniform(0.05, 0.2, count)
    bend, half = rng.normal(0, 0.04, count), rng.uniform(0.003, 0.007, count)
    foot, knee, tip = 1.02 + 0 * x, 1.02 - 0.6 * height, 1.02 - height
    outline = np.stack(
        [
            x - half,
            foot,
            x + 0.35 * bend - 0.7 * half,
            knee,
            x + bend,
            tip,
            x + 0.35 * bend + 0.7 * half,
            knee,
            x + half,
            foot,
        ],
        axis=-1,
    )
    green = np.array([0.30, 0.46, 0.16]) * rng.uniform(0.65, 1.35, (count, 1)) + rng.uniform(0, 0.06, (count, 1))
    paint(canvas, outline.reshape(count, 5, 2) * canvas.width, np.clip(green * (0.8 + 0.25 * light.direction[1]), 0, 1))


def _develop(
    behind: Image.Image, plant: Image.Image, backdrop: Backdrop, light: _Light, rng: np.random.Generator
) -> Image.Image:
    """Puts the plant in front of the backdrop, with its shadow, and adds the effects of a camera."""
    size = behind.width
    if backdrop in SHADOWED:
        behind = _cast_shadow(behind, plant, light)
    behind.paste(plant, mask=plant.getchannel("A"))
    glow = behind.reduce(4).filter(ImageFilter.GaussianBlur(size / 64)).resize(behind.size, Image.Resampling.BILINEAR)
    pixels = np.asarray(Image.blend(behind, glow, 0.10), dtype=np.float32) / 255
    pixels = pixels * light.gains.astype(np.float32) * _vignette(size)
    # A slight S-curve, as cameras apply, and the grain of a small sensor.
    pixels = np.clip(pixels, 0, 1)
    pixels = pixels + 0.2 * pixels * (1 - pixels) * (2 * pixels - 1)
    grain = rng.integers(-3, 4, (size, size, 1), dtype=np.int8).astype(np.float32) / 510
    return Image.fromarray(np.round(np.clip(pixels + grain, 0, 1) * 255).astype(np.uint8))


def _cast_shadow(behind: Image.Image, plant: Image.Image, light: _Light) -> Image.Image:
    size = behind.width
    cover = plant.getchannel("A").reduce(4).filter(ImageFilter.GaussianBlur(size / 110))
    shift = (round(-light.direction[0] * size * 0.11), round(light.direction[1] * size * 0.07))
    shadow = Image.new("L", behind.size)
    shadow.paste(cover.resize(behind.size, Image.Resampling.BILINEAR).point(lambda value: value * light.shadow), shift)
    return Image.composite(Image.new("RGB", behind.size, (18, 18, 26)), behind, shadow)


def _vignette(size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    line = np.linspace(-1, 1, size, dtype=np.float32)
    return (1 - 0.10 * (line[:, None] ** 2 + line[None] ** 2))[..., None]
