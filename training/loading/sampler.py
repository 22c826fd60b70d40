"""The order of the training pictures: a pure function of (seed, epoch, position), so a run can resume at any step.

The state of the sampler is (seed, epoch, pictures of the epoch that all ranks together have seen, manifest hash). It
does not depend on the number of loader processes or ranks, so a resumed run may have others.

Only whole global batches (batch size times ranks) are yielded: compiled networks need one shape, BatchNorm needs enough
pictures, and all ranks must take equally many steps. The pictures that are left over at the end of an epoch are
dropped; the next epoch has another order. Data smaller than one global batch gives one short batch an epoch, with
equally many pictures on each rank, since gradients are averaged over ranks with equal weights. If there are more ranks
than pictures, several ranks get the same picture.

NumPy guarantees the raw bits of a seed, but `shuffle` and `random` may change between versions (NEP 19). Tests compare
the orders with known ones to detect such a change.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from training.dataset.manifest import Manifest
from training.recipe import Order, Sampling, Target

Ints = npt.NDArray[np.integer]
Rows = npt.NDArray[np.int32]

BLOCK_SIZE: Final = 64
"""Neighboring pictures in a block of the order "blocks": 6 MB at 100 kB a picture."""
WINDOW_BLOCKS: Final = 64
"""Blocks that the order "blocks" shuffles together: 4,096 pictures from 64 places."""
_POWER: Final[dict[Sampling, float]] = {"every_picture": 1.0, "square_root": 0.5, "class_balanced": 0.0}
# Independent random streams. None may be 0: to NumPy the seeds (5, 2) and (5, 2, 0) are the same.
_QUOTAS = 1
_RINGS = 2
_NEGATIVES = 3


class SampleIndex(NamedTuple):
    """The index that the sampler gives to the data set: all that determines a training sample, besides the seed."""

    epoch: int
    row: int
    """Row of the manifest; -1 - n for picture n of those that show no plant."""
    side_px: int
    """Side of the network input to make, px."""
    repeat: int = 0
    """How often the epoch has sampled this row before; each repeat is augmented in its own way."""


def epoch_order(seed: int, epoch: int, num_pictures: int, order: Order) -> Rows:
    """The order of one epoch: a permutation of range(num_pictures), the same on every machine.

    "shuffled" permutes all pictures. "blocks" permutes blocks of `BLOCK_SIZE` neighbors, then shuffles the pictures of
    every `WINDOW_BLOCKS` blocks together, so that neighbors are read at about the same time. A batch still has pictures
    from many places, so this helps where reads are cached: a disk that reads ahead, or a cache in front of an object
    store.
    """
    random = np.random.default_rng([seed, epoch])
    if order == "shuffled":
        order_N = np.arange(num_pictures, dtype=np.int32)
        random.shuffle(order_N)
        return order_N
    blocks = random.permutation(-(-num_pictures // BLOCK_SIZE))
    windows = [np.empty(0, np.int32)]
    for first in range(0, len(blocks), WINDOW_BLOCKS):
        starts = blocks[first : first + WINDOW_BLOCKS, None] * BLOCK_SIZE
        window = (starts + np.arange(BLOCK_SIZE)).ravel().astype(np.int32)
        window = window[window < num_pictures]  # the last block may be short
        random.shuffle(window)
        windows.append(window)
    return np.concatenate(windows)


def epoch_counts(seed: int, epoch: int, labels: Ints, sampling: Sampling) -> Rows:
    """How often each picture is sampled in an epoch, which has as many samples as there are pictures.

    The share of a class of n pictures is proportional to n ("every_picture"), to the square root of n (Mahajan et al.
    2018), or the same for all classes ("class_balanced", Kang et al. 2020). Systematic resampling (Kitagawa 1996)
    rounds each class's expected number of samples up or down. The pictures of a class form a ring, and each epoch
    continues where the previous one stopped, within one picture for the rounding. So each picture is sampled its
    expected number of times, rounded up or down, and all pictures take turns at the extra sample.

    The seed decides the rings and, together with the epoch, the rounding. The result has shape (len(labels),) and adds
    up to len(labels).
    """
    if sampling == "every_picture":
        return np.ones(len(labels), np.int32)
    sizes = np.bincount(labels)
    ring = np.arange(len(labels), dtype=np.int32)  # the rings of all classes; each is shuffled once for the whole run
    np.random.default_rng([seed, 0, _RINGS]).shuffle(ring)
    small = np.min_scalar_type(len(sizes))  # 16-bit integers are radix-sorted, ten times as fast
    ring = ring[np.argsort(labels[ring].astype(small), kind="stable")]
    present = np.flatnonzero(sizes)
    sizes = sizes[present]
    expected = expected_samples(sizes, sampling)
    limits = np.concatenate([[0.0], expected.cumsum()])
    limits[-1] = len(labels)  # set exactly, since the sum may have a rounding error
    quotas = np.diff(np.floor(limits + np.random.default_rng([seed, epoch, _QUOTAS]).random()).astype(np.int64))
    whole, extra = np.divmod(quotas, sizes)
    first_extra = np.floor(epoch * expected).astype(np.int64) % sizes
    place = np.arange(len(labels)) - np.repeat(sizes.cumsum() - sizes, sizes)  # in the class's ring
    turn = (place - np.repeat(first_extra, sizes)) % np.repeat(sizes, sizes)
    counts = np.empty(len(labels), np.int32)
    counts[ring] = np.repeat(whole, sizes) + (turn < np.repeat(extra, sizes))
    return counts


def labels_for_sampling(manifest: Manifest, rows: Ints, target: Target) -> Ints:
    """The class of each row, for sampling: its output, or the position of its taxon in the taxonomy."""
    labels = manifest.labels[rows]
    return labels if target == "output" else manifest.taxonomy.taxon_of_output[labels]


def expected_samples(sizes: Ints, sampling: Sampling) -> npt.NDArray[np.float64]:
    """How often a class of each size is sampled in an epoch, on average; the sum is the number of pictures."""
    weights = np.where(sizes > 0, sizes ** _POWER[sampling], 0.0)
    return np.asarray(sizes.sum() * weights / weights.sum())


def batches_left(num_pictures: int, global_batch: int, first_picture: int = 0) -> int:
    """Batches from a position to the end of an epoch: whole global batches, at least one in a whole epoch."""
    whole = max(num_pictures - first_picture, 0) // global_batch
    return max(whole, 1) if first_picture == 0 else whole


class EpochBatches(Sampler[list[SampleIndex]]):
    """Batch sampler of one rank. Set `epoch`, `first_picture` (seen on all ranks) and `side_px` before iterating.

    `batch_size` is that of one rank, which gets its slice of every global batch. Neighbors in `rows` should be
    neighbors on the disk. `labels`, the class of each row, are needed unless sampling is "every_picture". `added` has
    for each list of pictures of no class how many there are, and how many of them are added to a batch of one rank.
    """

    def __init__(
        self,
        rows: Ints,
        batch_size: int,
        seed: int,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        order: Order = "shuffled",
        sampling: Sampling = "every_picture",
        labels: Ints | None = None,
        added: Sequence[tuple[int, int]] = (),
    ) -> None:
        if sampling != "every_picture" and labels is None:
            raise ValueError(f"{sampling} needs the label of every row")
        self._rows = rows.astype(np.int32)
        self._labels = None if sampling == "every_picture" or labels is None else labels.astype(np.int32)
        self._batch_size = batch_size
        self._seed = seed
        self._rank = rank
        self._num_ranks = num_ranks
        self._order = order
        self._sampling = sampling
        self._added = added
        self.epoch = 0
        self.first_picture = 0
        self.side_px = 0

    @property
    def global_batch(self) -> int:
        """Pictures in a batch on all ranks together, not counting those of no class."""
        return self._batch_size * self._num_ranks

    def __len__(self) -> int:
        return batches_left(len(self._rows), self.global_batch, self.first_picture)

    def __iter__(self) -> Iterator[list[SampleIndex]]:
        epoch = self.epoch
        side_px = self.side_px
        first = self.first_picture
        rows, repeats = self._samples()
        share = self._batch_size
        if len(rows) < self.global_batch:
            share = max(len(rows) // self._num_ranks, 1)
        for batch in range(len(self)):
            start = first + batch * self.global_batch + self._rank * share
            positions = np.arange(start, start + share) % len(rows)  # wraps if there are more ranks than pictures
            chosen = zip(rows[positions].tolist(), repeats[positions].tolist(), strict=True)
            plants = [SampleIndex(epoch, row, side_px, repeat) for row, repeat in chosen]
            yield plants + self._of_no_class(epoch, first // self.global_batch + batch, side_px)

    def _of_no_class(self, epoch: int, batch: int, side_px: int) -> list[SampleIndex]:
        """The pictures of no class of a batch of the epoch; all of a list take turns, in an order of the epoch.

        Their rows count down from -1, through all lists. The last list comes first.
        """
        found = list[SampleIndex]()
        first_row = -1
        for stream, (number, per_batch) in enumerate(self._added, start=_NEGATIVES):
            if number == 0:
                continue
            order = np.random.default_rng([self._seed, epoch, stream]).permutation(number)
            start = (batch * self._num_ranks + self._rank) * per_batch
            turns, places = np.divmod(np.arange(start, start + per_batch), number)
            chosen = zip(order[places].tolist(), turns.tolist(), strict=True)
            found = [SampleIndex(epoch, first_row - place, side_px, turn) for place, turn in chosen] + found
            first_row -= number
        return found

    def _samples(self) -> tuple[Rows, Rows]:
        """Row and repeat of every sample of the epoch, in order; each of shape (number of rows,)."""
        order = epoch_order(self._seed, self.epoch, len(self._rows), self._order)
        if self._labels is None:
            return self._rows[order], np.broadcast_to(np.int32(0), len(order))
        counts = epoch_counts(self._seed, self.epoch, self._labels, self._sampling)
        positions = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        repeats = np.arange(len(counts), dtype=np.int32) - np.repeat(counts.cumsum(dtype=np.int32) - counts, counts)
        # All first samples, then all second ones, so that a block of neighbors holds different pictures.
        by_repeat = np.argsort(repeats, kind="stable")[order]
        return self._rows[positions[by_repeat]], repeats[by_repeat]
