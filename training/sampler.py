"""Which picture comes when: a pure function of (seed, epoch, position), so that a run resumes exactly anywhere."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler


class Draw(NamedTuple):
    """What the loader asks the data set for; workers need nothing else."""

    epoch: int
    row: int
    """Row of the manifest."""
    side_px: int
    """Side of the network input to make, px."""


def epoch_order(seed: int, epoch: int, num_pictures: int) -> npt.NDArray[np.int64]:
    """The order of one epoch: a permutation of range(num_pictures), the same on every machine."""
    return np.random.default_rng([seed, epoch]).permutation(num_pictures)


def batches_per_epoch(num_pictures: int, batch_size: int) -> int:
    """Full batches only, as compiled networks need one shape and BatchNorm enough pictures.

    The remainder waits for another epoch's permutation; fewer pictures than one batch make one short batch.
    """
    return max(num_pictures // batch_size, 1)


class EpochBatches(Sampler[list[Draw]]):
    """The batches of one epoch, from any position on. Set `epoch`, `first_batch` and `side_px` before iterating.

    Args:
        rows: Manifest rows to draw from.
        batch_size: Pictures a batch.
        seed: Decides the order of every epoch.
    """

    def __init__(self, rows: npt.NDArray[np.int64], batch_size: int, seed: int) -> None:
        self._rows, self._batch_size, self._seed = rows, batch_size, seed
        self.epoch, self.first_batch, self.side_px = 0, 0, 0

    def __len__(self) -> int:
        return batches_per_epoch(len(self._rows), self._batch_size) - self.first_batch

    def __iter__(self) -> Iterator[list[Draw]]:
        order = self._rows[epoch_order(self._seed, self.epoch, len(self._rows))]
        for batch in range(self.first_batch, self.first_batch + len(self)):
            chosen = order[batch * self._batch_size : (batch + 1) * self._batch_size]
            yield [Draw(self.epoch, int(row), self.side_px) for row in chosen]


def side_at_epoch(progressive: Sequence[tuple[int, int]], picture_px: int, epoch: int) -> int:
    """Side of the training pictures in an epoch: the last pair (first epoch, px) that has begun, else `picture_px`."""
    begun = [side for first_epoch, side in progressive if first_epoch <= epoch]
    return begun[-1] if begun else picture_px
