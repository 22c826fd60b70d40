"""Draws the golden picture and records what every network file of a bundle answers on it."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from models.bundle import Precision
from models.golden import Golden
from models.preprocess import InputSpec, picture_to_input
from models.ranking import output_probabilities
from models.session import OnnxSession
from training.evaluation.predict import Logits
from training.release.precisions.ranges import Pixels

_WIDTH_PX: Final = 112
_HEIGHT_PX: Final = 84  # about 10 kB as PNG
_NUM_BLOBS: Final = 14
_NUM_DRAWN: Final = 16
_NUDGE: Final = 0.008  # half a grey level, in normalized units


def record_golden(
    networks: Mapping[Precision, Path], temperatures: Mapping[Precision, float], spec: InputSpec
) -> Golden:
    """Draws pictures and records what every network file answers on the steadiest of them.

    That is the one on which a change of half a grey level moves the probabilities least. On another processor an int8
    network rounds here and there to the next step, and that must not look like a fault.

    Args:
        networks: Precision -> its very file.
        temperatures: Precision -> the calibration of that file.
        spec: What they expect.
    """
    drawn = [draw_golden(seed) for seed in range(_NUM_DRAWN)]
    pixels_BCHW = np.stack([picture_to_input(picture, spec)[0] for picture in drawn])
    nudges = np.random.default_rng(0).uniform(-_NUDGE, _NUDGE, pixels_BCHW.shape).astype(np.float32)
    answers, unsteadiness = {}, np.zeros(_NUM_DRAWN)
    for precision, path in networks.items():
        answers[precision] = _answers(path, pixels_BCHW)
        pair = (answers[precision], _answers(path, pixels_BCHW + nudges))
        one, other = (output_probabilities(logits, temperatures[precision]) for logits in pair)
        unsteadiness = np.maximum(unsteadiness, np.abs(one - other).max(axis=1))
    steadiest = int(unsteadiness.argmin())
    logits = {precision: tuple(map(float, found[steadiest])) for precision, found in answers.items()}
    return Golden(drawn[steadiest], logits)


def draw_golden(seed: int) -> bytes:
    """A PNG with something for every layer: slopes, stripes, and blobs of many sizes and colors."""
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


def _answers(path: Path, pixels_BCHW: Pixels) -> Logits:
    session = OnnxSession(path)
    return np.concatenate([session.run(pixels[None]).logits for pixels in pixels_BCHW])
