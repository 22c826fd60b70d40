"""Makes parts of a running program slow."""

import time

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
