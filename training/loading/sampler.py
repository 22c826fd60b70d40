"""Which picture comes when: a pure function of (seed, epoch, position), so that a run resumes exactly anywhere.

State is therefore (seed, epoch, pictures of the epoch that are done on all ranks together, manifest hash), and any
number of loader processes or ranks goes on with just the pictures that are left.

One rule for what does not divide: only whole global batches (batch size times ranks) are given, as compiled networks
need one shape, BatchNorm enough pictures, and every rank as many steps as the others; the remainder of an epoch waits
for another epoch's order. Data smaller than one global batch makes one short batch an epoch, of equally many pictures
for each rank, since gradients are averaged over ranks with equal weight: fewer pictures than ranks are left over, and
only where ranks outnumber pictures is a picture shown on several.

NumPy promises the raw bits of a seed for ever, but may change `shuffle` and `random` between versions (NEP 19); tests
hold the orders against known ones, so that such a change is noticed.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from training.dataset.manifest import Manifest
from training.recipe import Order, Sampling, Target

BLOCK_SIZE: Final = 64
"""Neighbors that the order "blocks" keeps together: 6 MB of pictures of 100 kB."""
WINDOW_BLOCKS: Final = 64
"""Blocks whose pictures the order "blocks" mixes: 4,096 pictures from 64 places."""
_POWER: Final[dict[Sampling, float]] = {"every_picture": 1.0, "square_root": 0.5, "class_balanced": 0.0}
# Streams of their own. None may be 0: to NumPy the seeds (5, 2) and (5, 2, 0) are the same.
_QUOTAS, _RINGS = 1, 2


class Draw(NamedTuple):
    """What the loader asks the data set for; workers need nothing else."""

    epoch: int
    row: int
    """Row of the manifest."""
    side_px: int
    """Side of the network input to make, px."""
    copy: int = 0
    """Number of this draw among those of the row in this epoch: each copy is changed at random in its own way."""


def epoch_order(
    seed: int,
    epoch: int,
    num_pictures: int,
    order: Order = "shuffled",
    *,
    block_size: int = BLOCK_SIZE,
    window_blocks: int = WINDOW_BLOCKS,
) -> npt.NDArray[np.int32]:
    """The order of one epoch: a permutation of range(num_pictures), the same on every machine.

    "shuffled" permutes all pictures. "blocks" permutes blocks of `block_size` neighbors and shuffles the pictures of
    every `window_blocks` blocks among one another, so that neighbors are read soon after one another. A batch still
    takes its pictures from many places: what gains is whatever keeps what it read, such as a disk that reads ahead or a
    cache in front of an object store.
    """
    random = np.random.default_rng([seed, epoch])
    if order == "shuffled":
        found = np.arange(num_pictures, dtype=np.int32)
        random.shuffle(found)
        return found
    blocks = random.permutation(-(-num_pictures // block_size))
    windows = [np.empty(0, np.int32)]
    for first in range(0, len(blocks), window_blocks):
        starts = blocks[first : first + window_blocks, None] * block_size
        window = (starts + np.arange(block_size)).ravel().astype(np.int32)
        window = window[window < num_pictures]  # the last block may be short
        random.shuffle(window)
        windows.append(window)
    return np.concatenate(windows)


def epoch_copies(seed: int, epoch: int, labels: npt.NDArray[np.integer], sampling: Sampling) -> npt.NDArray[np.int32]:
    """How often each picture comes in an epoch that has as many draws as there are pictures.

    A class of n pictures is drawn with a probability proportional to n ("every_picture"), to the square root of n
    (Mahajan et al. 2018) or equal to that of all others ("class_balanced", Kang et al. 2020). Systematic resampling
    (Kitagawa 1996) gives each class its expected number of draws, rounded up or down. The pictures of a class stand in
    a ring, and an epoch goes on where the one before stopped (give or take one, for the rounding): each comes as often
    as expected, rounded up or down, and all get their turn at coming once more.

    Args:
        seed: Decides the rings, together with the epoch the rounding.
        epoch: The epoch.
        labels: Class of each picture.
        sampling: The rule.

    Returns:
        Shape (len(labels),); adds up to len(labels).
    """
    if sampling == "every_picture":
        return np.ones(len(labels), np.int32)
    sizes = np.bincount(labels)
    ring = _rings(seed, labels, len(sizes))
    present = np.flatnonzero(sizes)
    sizes = sizes[present]
    draws = expected_draws(sizes, sampling)
    limits = np.concatenate([[0.0], draws.cumsum()])
    limits[-1] = len(labels)  # exactly, whatever the sum was rounded to
    quotas = np.diff(np.floor(limits + np.random.default_rng([seed, epoch, _QUOTAS]).random()).astype(np.int64))
    whole, extra = np.divmod(quotas, sizes)
    first_extra = np.floor(epoch * draws).astype(np.int64) % sizes
    place = np.arange(len(labels)) - np.repeat(sizes.cumsum() - sizes, sizes)  # in the class's ring
    turn = (place - np.repeat(first_extra, sizes)) % np.repeat(sizes, sizes)
    copies = np.empty(len(labels), np.int32)
    copies[ring] = np.repeat(whole, sizes) + (turn < np.repeat(extra, sizes))
    return copies


def labels_for_sampling(manifest: Manifest, rows: npt.NDArray[np.integer], target: Target) -> npt.NDArray[np.int64]:
    """The class of each row that sampling counts by: its output, or the position of its taxon in the taxonomy.

    Args:
        manifest: The data.
        rows: Rows of the manifest.
        target: What a picture is an example of.

    Returns:
        Shape (len(rows),).
    """
    labels: npt.NDArray[np.int64] = manifest.labels[rows]
    if target == "output":
        return labels
    return manifest.taxonomy.taxon_of_output[labels].astype(np.int64)


def expected_draws(sizes: npt.NDArray[np.integer], sampling: Sampling) -> npt.NDArray[np.float64]:
    """How often each class is drawn in the mean epoch; a class without pictures never.

    Args:
        sizes: Pictures of each class.
        sampling: The rule.

    Returns:
        Shape (len(sizes),); adds up to the number of pictures.
    """
    weights = np.where(sizes > 0, sizes ** _POWER[sampling], 0.0)
    draws: npt.NDArray[np.float64] = sizes.sum() * weights / weights.sum()
    return draws


def batches_left(num_pictures: int, global_batch: int, first_picture: int = 0) -> int:
    """Batches from a position to the end of an epoch: whole global batches, at least one in a whole epoch."""
    whole = max(num_pictures - first_picture, 0) // global_batch
    return max(whole, 1) if first_picture == 0 else whole


class EpochBatches(Sampler[list[Draw]]):
    """One rank's batches of an epoch. Set `epoch`, `first_picture` (done on all ranks) and `side_px` before iterating.

    Args:
        rows: Manifest rows to draw from; neighbors should be neighbors on disk.
        batch_size: Pictures a batch and rank.
        seed: Decides the order of every epoch.
        rank: Which rank this is: it takes its slice of every global batch.
        num_ranks: How many train together.
        order: How the pictures of an epoch are put in order.
        sampling: How often the pictures of each class come.
        labels: Class of each row; only a sampling other than "every_picture" needs it.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.integer],
        batch_size: int,
        seed: int,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        order: Order = "shuffled",
        sampling: Sampling = "every_picture",
        labels: npt.NDArray[np.integer] | None = None,
    ) -> None:
        if not 0 <= rank < num_ranks:
            raise ValueError(f"rank {rank} of {num_ranks}")
        if sampling != "every_picture" and (labels is None or len(labels) != len(rows)):
            raise ValueError(f"{sampling} needs the label of every row")
        self._rows = rows.astype(np.int32)
        self._labels = None if sampling == "every_picture" or labels is None else labels.astype(np.int32)
        self._batch_size, self._seed, self._rank, self._num_ranks = batch_size, seed, rank, num_ranks
        self._order, self._sampling = order, sampling
        self.epoch, self.first_picture, self.side_px = 0, 0, 0

    @property
    def global_batch(self) -> int:
        """Pictures a step on all ranks together."""
        return self._batch_size * self._num_ranks

    def __len__(self) -> int:
        return batches_left(len(self._rows), self.global_batch, self.first_picture)

    def __iter__(self) -> Iterator[list[Draw]]:
        epoch, side_px, first = self.epoch, self.side_px, self.first_picture
        rows, copies = self._draws()
        share = self._batch_size
        if len(rows) < self.global_batch:
            share = max(len(rows) // self._num_ranks, 1)
        for batch in range(len(self)):
            start = first + batch * self.global_batch + self._rank * share
            drawn = np.arange(start, start + share) % len(rows)  # wraps round where ranks outnumber pictures
            chosen = zip(rows[drawn].tolist(), copies[drawn].tolist(), strict=True)
            yield [Draw(epoch, row, side_px, copy) for row, copy in chosen]

    def _draws(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Row and copy of every draw of the epoch, in order; each of shape (number of rows,)."""
        order = epoch_order(self._seed, self.epoch, len(self._rows), self._order)
        if self._labels is None:
            return self._rows[order], np.broadcast_to(np.int32(0), len(order))
        times = epoch_copies(self._seed, self.epoch, self._labels, self._sampling)
        positions = np.repeat(np.arange(len(times), dtype=np.int32), times)
        copies = np.arange(len(times), dtype=np.int32) - np.repeat(times.cumsum(dtype=np.int32) - times, times)
        # All first copies, then all second ones: blocks of neighbors then hold different pictures.
        by_copy = np.argsort(copies, kind="stable")[order]
        return self._rows[positions[by_copy]], copies[by_copy]


def side_at_epoch(progressive: Sequence[tuple[int, int]], picture_px: int, epoch: int) -> int:
    """Side of the training pictures in an epoch: the last pair (first epoch, px) that has begun, else `picture_px`."""
    begun = [side for first_epoch, side in progressive if first_epoch <= epoch]
    return begun[-1] if begun else picture_px


def _rings(seed: int, labels: npt.NDArray[np.integer], num_classes: int) -> npt.NDArray[np.int32]:
    """Positions of all pictures, class by class, each class in an order of its own that no epoch changes."""
    shuffled = np.arange(len(labels), dtype=np.int32)
    np.random.default_rng([seed, 0, _RINGS]).shuffle(shuffled)
    small = np.min_scalar_type(num_classes)  # two bytes are sorted by radix, ten times as fast
    return shuffled[np.argsort(labels[shuffled].astype(small), kind="stable")]
