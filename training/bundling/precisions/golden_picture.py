"""Draws the golden picture and records the logits of every network file of a bundle for it."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from models.bundle import Golden
from models.bundle_record import Precision
from models.preprocess import InputSpec, picture_to_input
from models.ranking import output_probabilities
from models.session import OnnxSession
from training.bundling.precisions.ranges import Pixels
from training.evaluation.predict import Logits

_WIDTH_PX: Final = 112
_HEIGHT_PX: Final = 84  # about 10 kB as PNG
_NUM_BLOBS: Final = 14
_NUM_CANDIDATES: Final = 16
_NOISE: Final = 0.008  # half a gray level, in normalized units


def record_golden(
    networks: Mapping[Precision, Path], temperatures: Mapping[Precision, float], spec: InputSpec
) -> Golden:
    """Draws pictures and records the logits of every network file for the most stable of them.

    That is the picture for which noise of half a gray level changes the probabilities least. On another processor an
    int8 network rounds a few values differently, which must not look like an error.

    Args:
        networks: Precision -> network file.
        temperatures: Precision -> temperature of that file.
        spec: Input of the networks.
    """
    pictures = [draw_golden(seed) for seed in range(_NUM_CANDIDATES)]
    pixels_BCHW = np.stack([picture_to_input(picture, spec)[0] for picture in pictures])
    noise = np.random.default_rng(0).uniform(-_NOISE, _NOISE, pixels_BCHW.shape).astype(np.float32)
    logits, changes = {}, np.zeros(_NUM_CANDIDATES)
    for precision, path in networks.items():
        logits[precision] = _logits(path, pixels_BCHW)
        pair = (logits[precision], _logits(path, pixels_BCHW + noise))
        one, other = (output_probabilities(each, temperatures[precision]) for each in pair)
        changes = np.maximum(changes, np.abs(one - other).max(axis=1))
    best = int(changes.argmin())
    return Golden(pictures[best], {precision: tuple(map(float, each[best])) for precision, each in logits.items()})


def draw_golden(seed: int) -> bytes:
    """Draws a PNG with gradients, stripes, and blobs of many sizes and colors, so that every layer responds to it."""
    random = np.random.default_rng(seed)
    y_HW, x_HW = np.mgrid[0:_HEIGHT_PX, 0:_WIDTH_PX] / np.array([_HEIGHT_PX, _WIDTH_PX]).reshape(2, 1, 1)
    picture_HW3 = np.stack([90 + 60 * y_HW, 140 - 50 * y_HW + 20 * x_HW, 70 + 30 * x_HW], axis=-1)
    for _ in range(_NUM_BLOBS):
        x, y, radius = random.random(), random.random(), random.uniform(0.04, 0.16)
        inside_HW = np.exp(-((((x_HW - x) ** 2 + (y_HW - y) ** 2) / radius**2) ** 2))
        picture_HW3 += inside_HW[..., None] * (random.uniform(0, 255, 3) - picture_HW3)
    picture_HW3 += 12 * np.sin(40 * x_HW + 25 * y_HW)[..., None]
    stream = io.BytesIO()
    Image.fromarray(picture_HW3.clip(0, 255).astype(np.uint8)).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _logits(path: Path, pixels_BCHW: Pixels) -> Logits:
    session = OnnxSession(path)
    return np.concatenate([session.run(pixels[None]).logits for pixels in pixels_BCHW])
