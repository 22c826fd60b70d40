"""Near copies: groups of pictures of one name whose perceptual hashes differ in few bits.

Leaves on paper look alike to the hash whatever their species, and even equal hashes are then no proof of a copy. So
pictures of two names are never in one group. A copy with another name makes no accuracy too high, since the network
learns the other name; it is listed instead.

Multi-index hashing (Norouzi et al. 2012) finds every pair: the 64 bits are divided into blocks, and two hashes that
differ in at most k bits agree in all but k of the blocks. For each choice of k blocks the hashes are sorted by the
remaining bits, and only those that agree there are compared.

"Near" is not transitive: A may be near B and B near C while A and C are different pictures. Among a million pictures
such chains grow, and would put thousands of pictures into one split. So a chain is cut into groups around leaders
(`near_groups`). Two near pictures may then be in different groups; `NearGroups.chained` marks them.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from training.dataset.sources.record import LabeledPicture
from training.dataset.splits import Codes, connected_parts

# The hashes of pictures of a single color, which say nothing about what the pictures show.
_FEATURELESS: Final = (0, 1 << 63)

_Hashes = npt.NDArray[np.uint64]
_BITS: Final = 64
_KEPT_BLOCKS: Final = 3  # that near hashes agree in; more of them make more tables, each with fewer chance matches
_CROWDED: Final = 256  # buckets above this size are sorted by chain, so that known pairs are skipped
_STEPS_AT_ONCE: Final = 4_000_000  # near pairs, 64 MB
_MOST_PICTURES: Final = 50  # in a group
_GIANT: Final = 2048  # hashes; up to this size all distances of a chain are computed (2048 squared)


class NearGroups(msgspec.Struct, frozen=True, eq=False):
    """Pictures in groups of near copies."""

    group_of: Codes
    """Group of each picture, from 0, in ascending order of the groups' smallest hashes; -1 for no group."""
    num_chained: int
    """Chains of near pictures that were cut, because their ends differ too much or they have too many pictures."""
    chained: npt.NDArray[np.bool_]
    """Whether each picture was in such a chain; it may then have a near copy outside of its group."""
    any_name: Codes
    """Group of each picture if the names are ignored."""


def near_copy_groups(pictures: Sequence[LabeledPicture], names: Codes, max_bits: int) -> NearGroups:
    """Groups near copies of one name (see `near_groups`); pictures of a single color get no group."""
    hashes = np.array([picture.info.perceptual_hash for picture in pictures], dtype=np.uint64)
    found = near_groups(hashes, max_bits, names=names)
    blank = np.isin(hashes, np.array(_FEATURELESS, dtype=np.uint64))
    group_of, any_name = (np.where(blank, -1, groups) for groups in (found.group_of, found.any_name))
    return msgspec.structs.replace(found, group_of=group_of, any_name=any_name)


def near_groups(hashes: _Hashes, max_bits: int, names: Codes | None = None) -> NearGroups:
    """Groups pictures whose perceptual hashes are near one another.

    Pictures with equal hashes always share a group. Different hashes that are connected by steps of at most `max_bits`
    form one group if every two of them are that near, and if they have at most `_MOST_PICTURES`. Otherwise the chain is
    cut: the hash with the most pictures near it leads a group of the nearest, up to that number; then the next of the
    remaining ones. A chain of more than 2,048 different hashes is first split with `max_bits` - 1, recursively. The
    result does not depend on the order of the pictures.

    With `names` (numbers from 0), all this holds for the pictures of each name, and no group has two names. Hashes and
    names have the shape (pictures,).
    """
    unique, row = np.unique(hashes, return_inverse=True)
    chain = _components(unique, max_bits)
    any_name = _grouped(unique, row, chain, np.zeros_like(row), max_bits)
    if names is None:
        return any_name
    found = _grouped(unique, row, chain, names, max_bits)
    return msgspec.structs.replace(found, any_name=any_name.group_of)


def _grouped(unique: _Hashes, row: Codes, chain: Codes, names: Codes, max_bits: int) -> NearGroups:
    """Cuts the chains of hashes, each name by itself, given the position of each picture's hash and its name."""
    num_names = int(names.max(initial=0)) + 1
    pairs, entry, num_pictures = np.unique(row * num_names + names, return_inverse=True, return_counts=True)
    position, name = np.divmod(pairs, num_names)
    own_chain = np.unique(chain[position] * num_names + name, return_inverse=True)[1]
    piece = _cut_chains(unique[position], num_pictures, own_chain, max_bits)
    chain = own_chain[entry]
    piece = piece[entry]
    sizes = np.bincount(piece)
    number = np.where(sizes > 1, np.cumsum(sizes > 1) - 1, -1)  # pieces of two or more pictures
    chain_of_piece = np.zeros(len(sizes), np.int64)
    chain_of_piece[piece] = chain
    cut = np.bincount(chain_of_piece) > 1
    return NearGroups(group_of=number[piece], num_chained=int(cut.sum()), chained=cut[chain], any_name=number[piece])


def _cut_chains(unique: _Hashes, num_pictures: Codes, chain: Codes, max_bits: int) -> Codes:
    """Returns the piece of each hash; pieces are numbered in ascending order of their smallest hashes."""
    order = np.argsort(chain, kind="stable")
    starts = np.flatnonzero(np.diff(chain[order], prepend=-1))
    ends = np.append(starts[1:], len(order))
    first = np.arange(len(unique))  # a piece is identified by its smallest hash until all are found
    first[order] = np.repeat(order[starts], ends - starts)
    # A single hash needs no check; two hashes of one name may have been connected by those of other names.
    for at in np.flatnonzero(ends - starts > 1):
        rows = order[starts[at] : ends[at]]
        first[rows] = rows[_cut(unique[rows], num_pictures[rows], max_bits)]
    return np.unique(first, return_inverse=True)[1]


def _cut(hashes: _Hashes, num_pictures: Codes, max_bits: int) -> Codes:
    """Cuts one chain of different hashes, in ascending order; returns the position of each piece's smallest hash."""
    if len(hashes) > _GIANT:
        finer = _components(hashes, max_bits - 1)
        piece = _cut_chains(hashes, num_pictures, finer, max_bits - 1)
    else:
        piece = _around_leaders(np.bitwise_count(hashes[:, None] ^ hashes[None, :]), num_pictures, max_bits)
    _, smallest, back = np.unique(piece, return_index=True, return_inverse=True)
    return smallest[back]


def _around_leaders(distances: npt.NDArray[np.uint8], num_pictures: Codes, max_bits: int) -> Codes:
    """Returns the piece of each hash of a chain, given all distances, shape (hashes, hashes)."""
    near = distances <= max_bits
    in_reach = near @ num_pictures
    piece = np.full(len(near), -1)
    while (free := piece < 0).any():
        leader = int(np.argmax(np.where(free, in_reach, -1)))  # the smallest hash if several are equal
        members = np.flatnonzero(near[leader] & free)
        members = members[np.argsort(distances[leader, members], kind="stable")]  # the leader comes first
        within = int(np.searchsorted(np.cumsum(num_pictures[members]), _MOST_PICTURES, side="right"))
        members = members[: max(within, 1)]
        piece[members] = leader
        in_reach -= near[:, members] @ num_pictures[members]
    return piece


def _components(hashes: _Hashes, max_bits: int) -> Codes:
    """Returns the chain of each hash; hashes that are connected by steps of at most `max_bits` share a chain."""
    chain = np.arange(len(hashes))
    if max_bits == 0 or len(hashes) < 2:
        return chain
    steps: list[Codes] = []
    # Blocks of bits that separate hashes equally well: bits that hardly vary count little.
    ones = [int(((hashes >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(_BITS)]
    balanced_first = sorted(range(_BITS), key=lambda bit: abs(2 * ones[bit] - len(hashes)))
    num_blocks = max_bits + _KEPT_BLOCKS
    blocks = [np.uint64(sum(1 << bit for bit in balanced_first[block::num_blocks])) for block in range(num_blocks)]
    for kept in combinations(blocks, _KEPT_BLOCKS):
        mask = np.bitwise_or.reduce(kept)  # near hashes agree in all bits of at least one mask
        done = False
        while not done:
            found, done = _steps_in_buckets(hashes, mask, chain, max_bits)
            steps.append(found)
            if sum(map(len, steps)) >= _STEPS_AT_ONCE:
                chain = _joined(chain, steps)
                steps = []
    return _joined(chain, steps) if steps else chain


def _joined(chain: Codes, steps: Sequence[Codes]) -> Codes:
    """Joins the chains that further steps, shape (steps, 2), connect."""
    from_to = chain[np.concatenate(steps)].T
    return connected_parts(len(chain), from_to[0], from_to[1])[chain]


def _steps_in_buckets(hashes: _Hashes, mask: np.uint64, chain: Codes, max_bits: int) -> tuple[Codes, bool]:
    """Compares the hashes that agree in the bits of a mask.

    The last chain of a bucket is not compared with itself. Many hashes that are all near one another (the largest
    chain of their bucket once a few of them are joined) therefore do not take quadratic time.

    Returns:
        Near pairs of different chains, shape (pairs, 2), and whether these are all; if not, join them and call again.
    """
    order, bucket_end = _buckets(hashes, mask, chain)
    hash_at = hashes[order]
    chain_at = chain[order]
    first = np.flatnonzero(chain_at != chain_at[bucket_end - 1])
    mates = bucket_end[first] - first
    found: list[Codes] = [np.empty((0, 2), np.int64)]
    offset = num_found = 0
    while len(first) and num_found < _STEPS_AT_ONCE:
        offset += 1
        more = mates > offset
        first = first[more]
        mates = mates[more]
        near = first[np.bitwise_count(hash_at[first] ^ hash_at[first + offset]) <= max_bits]
        near = near[chain_at[near] != chain_at[near + offset]]
        found.append(np.stack([order[near], order[near + offset]], axis=1))
        num_found += len(near)
    return np.concatenate(found), not len(first)


def _buckets(hashes: _Hashes, mask: np.uint64, chain: Codes) -> tuple[Codes, Codes]:
    """Returns an order in which hashes that agree in a mask are adjacent, and the end of each one's bucket in it."""
    key = hashes & mask
    order = np.argsort(key)
    by_key = key[order]
    bounds = np.concatenate([[0], np.flatnonzero(by_key[1:] != by_key[:-1]) + 1, [len(key)]])
    sizes = np.diff(bounds)
    if sizes.max() > _CROWDED:
        order = np.lexsort((chain, np.bincount(chain)[chain], key))
    return order, np.repeat(bounds[1:], sizes)
