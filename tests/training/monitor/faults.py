"""Makes parts of a running program slow."""

import time

import numpy as np
from PIL import Image

from training.loading.storage import PictureStore


class SlowStore(PictureStore):
    """A store that takes 30 ms per picture; in loader processes, too."""

    def __reduce__(self):
        return SlowStore, (self.manifest,)

    def read_many(self, rows):
        time.sleep(0.03 * len(rows))
        return super().read_many(rows)


def waiting(function, times):
    """Sleeps after each call for a multiple of its duration, so that the result does not depend on the machine."""

    def call(*arguments, **named):
        began = time.perf_counter()
        found = function(*arguments, **named)
        time.sleep(times * (time.perf_counter() - began))
        return found

    return call


def late(function, seconds):
    """Sleeps before each call."""

    def call(*arguments, **named):
        time.sleep(seconds)
        return function(*arguments, **named)

    return call


def write_heavy_pictures(root, per_class=8, side_px=1600):
    """Writes two folders of noisy JPEGs, which are slow to decode."""
    random = np.random.default_rng(0)
    for name in ("Iris caerulea", "Rosa rubra"):
        (root / name).mkdir(parents=True)
        for picture in range(per_class):
            noise = random.integers(0, 256, (side_px, side_px, 3), dtype=np.uint8)
            Image.fromarray(noise).save(root / name / f"{picture:02}.jpg", quality=95)
    return root
