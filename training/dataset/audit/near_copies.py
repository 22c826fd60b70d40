"""Which pictures are near copies of one another: groups of perceptual hashes that differ in few bits.

Every pair within reach is found, by multi-index hashing (Norouzi et al. 2012): the 64 bits are dealt into blocks, and
two hashes that differ in at most k bits agree in all but k of the blocks, whichever these are. So for each choice of k
blocks the hashes are sorted by the remaining bits, and only those that agree there are compared.

"Near" does not carry on: A may be near B and B near C while A and C are different pictures. Over a million pictures
such chains grow, and would tie thousands of pictures to one split. So a chain is cut around leaders (`near_groups`).
The price is that two near pictures at the rim of two such groups may come apart; `NearGroups.chained` marks them.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import comb
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from models.errors import DataError

# The hashes of pictures of one color: there is no shape to compare, whatever they are pictures of.
FEATURELESS: Final = (0, 1 << 63)

_Hashes = npt.NDArray[np.uint64]
_Ints = npt.NDArray[np.int64]

_BITS: Final = 64
_MOST_BITS: Final = 8
# More blocks make more tables of fewer chance neighbours each; these many more than the least are tried.
_EXTRA_BLOCKS: Final = 4
_SORTING: Final = 10  # what a table costs per hash, in comparisons of a pair: 110 ns to 15 ns at 1.6 million hashes
_CROWDED: Final = 256  # from this many hashes on, a bucket is worth sorting so that known neighbours are skipped
_STEPS_AT_ONCE: Final = 4_000_000  # near pairs, 64 MB
_GIANT: Final = 2048  # hashes; up to here all distances of a chain are written down (2048 squared)


class NearGroups(msgspec.Struct, frozen=True, eq=False):
    """Pictures in groups of near copies."""

    group_of: npt.NDArray[np.int64]
    """Group of each picture, from 0, in ascending order of the groups' smallest hashes; -1 for a picture alone."""
    num_groups: int
    """Groups of two or more pictures."""
    num_chained: int
    """Chains of near pictures that were cut, since their ends are too different or they are too many."""
    chained: npt.NDArray[np.bool_]
    """Which pictures stood in such a chain, and may have a near copy outside of their group."""
    num_oversized: int
    """Groups above `max_group`: so many pictures share one and the same hash, as blank ones do."""


def near_groups(hashes: _Hashes, max_bits: int, max_group: int = 50) -> NearGroups:
    """Groups pictures whose perceptual hashes are near one another.

    Pictures of one hash always share a group. Different hashes that are connected by steps of at most `max_bits` form
    one group if all of them are that near to one another and no more than `max_group` pictures. Otherwise they are
    cut: the hash with the most pictures in its reach leads a group of the nearest up to `max_group`, then the next of
    those left. A chain of more than 2,048 different hashes shows that `max_bits` tells its pictures apart badly, so it
    is first taken apart with a bit less, and again. The result does not depend on the order of the pictures.

    Args:
        hashes: One a picture, shape (pictures,).
        max_bits: Hashes that differ in at most this many bits are near, 0 to 8.
        max_group: Most pictures of a group of different hashes.

    Raises:
        DataError: `max_bits` is out of range.
    """
    if not 0 <= max_bits <= _MOST_BITS:
        raise DataError(
            "near copies cannot be told so far apart",
            value=f"{max_bits} bits",
            limit=f"0 to {_MOST_BITS} of {_BITS} bits",
            remedy="lower near_copy_bits",
        )
    unique, row, num_pictures = np.unique(hashes, return_inverse=True, return_counts=True)
    chain = _components(unique, max_bits)
    piece = _cut_chains(unique, num_pictures, chain, max_bits, max_group)
    return _as_groups(chain[row], piece[row], max_group)


def _as_groups(chain: _Ints, piece: _Ints, max_group: int) -> NearGroups:
    """Numbers the pieces of two or more pictures from 0, given chain and piece of each picture."""
    sizes = np.bincount(piece)
    number = np.where(sizes > 1, np.cumsum(sizes > 1) - 1, -1)
    chain_of_piece = np.zeros(len(sizes), np.int64)
    chain_of_piece[piece] = chain
    cut = np.bincount(chain_of_piece) > 1
    return NearGroups(
        group_of=number[piece],
        num_groups=int((sizes > 1).sum()),
        num_chained=int(cut.sum()),
        chained=cut[chain],
        num_oversized=int((sizes > max_group).sum()),
    )


def _cut_chains(unique: _Hashes, num_pictures: _Ints, chain: _Ints, max_bits: int, max_group: int) -> _Ints:
    """Piece of each hash, numbered in ascending order of the pieces' smallest hashes."""
    order = np.argsort(chain, kind="stable")
    starts = np.flatnonzero(np.diff(chain[order], prepend=-1))
    ends = np.append(starts[1:], len(order))
    pictures = np.add.reduceat(num_pictures[order], starts) if len(starts) else starts
    first = np.arange(len(unique))  # a piece is known by its smallest hash until all are found
    first[order] = np.repeat(order[starts], ends - starts)
    # Two connected hashes are near by themselves, so only longer chains and large groups need a look.
    for at in np.flatnonzero((ends - starts > 2) | ((ends - starts > 1) & (pictures > max_group))):
        rows = order[starts[at] : ends[at]]
        first[rows] = rows[_cut(unique[rows], num_pictures[rows], max_bits, max_group)]
    return np.asarray(np.unique(first, return_inverse=True)[1])


def _cut(hashes: _Hashes, num_pictures: _Ints, max_bits: int, max_group: int) -> _Ints:
    """Cuts one chain of different hashes, in ascending order; gives the position of each piece's smallest hash."""
    if len(hashes) > _GIANT:
        finer = _components(hashes, max_bits - 1)
        piece = _cut_chains(hashes, num_pictures, finer, max_bits - 1, max_group)
    else:
        distances = np.bitwise_count(hashes[:, None] ^ hashes[None, :])
        if distances.max() <= max_bits and num_pictures.sum() <= max_group:
            return np.zeros(len(hashes), np.int64)
        piece = _around_leaders(distances, num_pictures, max_bits, max_group)
    _, smallest, back = np.unique(piece, return_index=True, return_inverse=True)
    return np.asarray(smallest[back])


def _around_leaders(
    distances: npt.NDArray[np.uint8], num_pictures: _Ints, max_bits: int, max_group: int
) -> npt.NDArray[np.int64]:
    """Piece of each hash of a chain, given all distances, shape (hashes, hashes)."""
    near = distances <= max_bits
    in_reach = near @ num_pictures
    piece = np.full(len(near), -1)
    for number in range(len(near)):
        free = piece < 0
        if not free.any():
            break
        leader = int(np.argmax(np.where(free, in_reach, -1)))  # of equals the smallest hash
        members = np.flatnonzero(near[leader] & free)
        members = members[np.argsort(distances[leader, members], kind="stable")]  # the leader itself first
        within = int(np.searchsorted(np.cumsum(num_pictures[members]), max_group, side="right"))
        members = members[: max(within, 1)]
        piece[members] = number
        in_reach -= near[:, members] @ num_pictures[members]
    return piece


def _components(hashes: _Hashes, max_bits: int) -> _Ints:
    """Chain of each of different hashes: those connected by steps of at most `max_bits`."""
    chain = np.arange(len(hashes))
    if max_bits == 0 or len(hashes) < 2:
        return chain
    steps: list[_Ints] = []
    for mask in _masks(hashes, max_bits):
        done = False
        while not done:
            found, done = _steps_in_buckets(hashes, mask, chain, max_bits)
            steps.append(found)
            if sum(map(len, steps)) >= _STEPS_AT_ONCE:
                chain, steps = _joined(chain, steps), []
    return _joined(chain, steps) if steps else chain


def _joined(chain: _Ints, steps: Sequence[_Ints]) -> _Ints:
    """The chains after further steps, shape (steps, 2), have connected them."""
    from_to = chain[np.concatenate(steps)].T
    size = len(chain)
    graph = coo_array((np.ones(from_to.shape[1], np.bool_), (from_to[0], from_to[1])), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)[chain]


def _steps_in_buckets(hashes: _Hashes, mask: np.uint64, chain: _Ints, max_bits: int) -> tuple[_Ints, bool]:
    """Compares the hashes that agree in the bits of a mask.

    The chain that stands last in a bucket is not compared with itself, so that a crowd of hashes that are all near
    one another (which is its bucket's largest chain once a few of them are joined) costs no quadratic time.

    Returns:
        Near pairs of different chains, shape (pairs, 2), and whether those are all; if not, join them and ask again.
    """
    order, bucket_end = _buckets(hashes, mask, chain)
    hash_at, chain_at = hashes[order], chain[order]
    first = np.flatnonzero(chain_at != chain_at[bucket_end - 1])
    mates = bucket_end[first] - first
    found: list[_Ints] = [np.empty((0, 2), np.int64)]
    offset = num_found = 0
    while len(first) and num_found < _STEPS_AT_ONCE:
        offset += 1
        more = mates > offset
        first, mates = first[more], mates[more]
        near = first[np.bitwise_count(hash_at[first] ^ hash_at[first + offset]) <= max_bits]
        near = near[chain_at[near] != chain_at[near + offset]]
        found.append(np.stack([order[near], order[near + offset]], axis=1))
        num_found += len(near)
    return np.concatenate(found), not len(first)


def _buckets(hashes: _Hashes, mask: np.uint64, chain: _Ints) -> tuple[_Ints, _Ints]:
    """An order in which hashes that agree in a mask stand together, and where the bucket of each one there ends."""
    key = hashes & mask
    order = np.argsort(key)
    bounds = _bounds(key[order])
    sizes = np.diff(bounds)
    if sizes.max() > _CROWDED:
        order = np.lexsort((chain, np.bincount(chain)[chain], key))
    return order, np.repeat(bounds[1:], sizes)


def _masks(hashes: _Hashes, max_bits: int) -> Iterator[np.uint64]:
    """For each table, the bits by which hashes are sorted; near hashes agree in all bits of at least one."""
    choices = [_blocks(hashes, max_bits + extra) for extra in range(1, _EXTRA_BLOCKS + 1)]
    blocks = min(choices, key=lambda blocks: _cost(hashes, blocks, max_bits))
    for kept in combinations(blocks, len(blocks) - max_bits):
        yield _united(kept)


def _blocks(hashes: _Hashes, num_blocks: int) -> list[np.uint64]:
    """Deals the bits into blocks that tell hashes apart equally well: bits that hardly vary count for little."""
    ones = [int(((hashes >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(_BITS)]
    balanced_first = sorted(range(_BITS), key=lambda bit: abs(2 * ones[bit] - len(hashes)))
    return [np.uint64(sum(1 << bit for bit in balanced_first[block::num_blocks])) for block in range(num_blocks)]


def _cost(hashes: _Hashes, blocks: Sequence[np.uint64], max_bits: int) -> int:
    """Work of all tables, in comparisons of a pair, judged by the first."""
    key = np.sort(hashes & _united(blocks[: len(blocks) - max_bits]))
    sizes = np.diff(_bounds(key))
    return comb(len(blocks), max_bits) * (len(hashes) * _SORTING + int((sizes * (sizes - 1) // 2).sum()))


def _united(blocks: Sequence[np.uint64]) -> np.uint64:
    return np.uint64(np.bitwise_or.reduce(np.array(blocks, np.uint64)))


def _bounds(key: _Hashes) -> _Ints:
    """Where each run of equal keys starts, and the end of the last."""
    return np.concatenate([[0], np.flatnonzero(key[1:] != key[:-1]) + 1, [len(key)]])
