"""Groups of near copies: every near pair is found, chains are cut, and many similar hashes take no quadratic time."""

import json
import sys
from itertools import pairwise

import numpy as np
import pytest

from tests.make import from_table, ran
from tests.training.dataset.labeled import picture
from training.dataset.audit import near_copies
from training.dataset.audit.near_copies import near_copy_groups, near_groups

# Generates 1.6 million hashes of one kind, plants near copies, and prints what the grouping took.
SCALE = """
import json, resource, sys, time
import numpy as np
from training.dataset.audit.near_copies import near_groups
kind, max_bits, count, planted = sys.argv[1], int(sys.argv[2]), 1_600_000, 100_000
random = np.random.default_rng(0)
hashes = random.integers(0, 2**64, count, dtype=np.uint64)
if kind == "blank":
    hashes[planted:-planted][:50_000] = 1 << 63
if kind == "crowded":
    hashes[planted:-planted][:100_000] = random.integers(0, 2**16, 100_000, dtype=np.uint64) << np.uint64(20)
if kind == "skewed":
    hashes >>= np.uint64(20)
flips = np.argsort(random.random((planted, 64 if kind != "skewed" else 44)), axis=1)[:, :max_bits].astype(np.uint64)
hashes[-planted:] = hashes[:planted] ^ np.bitwise_or.reduce(np.uint64(1) << flips, axis=1)
started = time.process_time()
found = near_groups(hashes, max_bits)
print(json.dumps({
    "seconds": time.process_time() - started,
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "together": float((found.group_of[:planted] == found.group_of[-planted:]).mean()),
    "oversized": int((np.bincount(found.group_of[found.group_of >= 0]) > 50).sum()),
}))
"""


def flipped(hashes, num_bits, random):
    """The same hashes, each with `num_bits` random bits flipped."""
    flips = np.argsort(random.random((len(hashes), 64)), axis=1)[:, :num_bits].astype(np.uint64)
    return hashes ^ np.bitwise_or.reduce(np.uint64(1) << flips, axis=1)


def walk(num_steps, bits, random):
    """A chain of hashes from a random one; successive steps flip bits[0], bits[1], ... bits, then bits[0] again."""
    hashes = random.integers(0, 2**64, 1, dtype=np.uint64)
    for step in range(num_steps - 1):
        hashes = np.append(hashes, flipped(hashes[-1:], bits[step % len(bits)], random))
    return hashes


def partition(found):
    """The groups as sets of pictures."""
    groups = {}
    for row, group in enumerate(found.group_of.tolist()):
        if group >= 0:
            groups.setdefault(group, set()).add(row)
    return {frozenset(members) for members in groups.values()}


def near_pairs(hashes, max_bits):
    """Every near pair, found by comparing all pairs."""
    distances = np.bitwise_count(hashes[:, None] ^ hashes[None, :])
    return {(int(a), int(b)) for a, b in zip(*np.nonzero(distances <= max_bits), strict=True) if a < b}


def hashes_of(*numbers):
    return np.array(numbers, dtype=np.uint64)


@pytest.mark.parametrize("max_bits", range(9))
def test_every_near_pair_is_found_and_no_other(max_bits):
    random = np.random.default_rng(max_bits)
    originals = random.integers(0, 2**64, 700, dtype=np.uint64)
    copies, others = flipped(originals[:300], max_bits, random), flipped(originals[300:600], max_bits + 1, random)
    hashes = np.concatenate([originals, copies, others])
    found = near_groups(hashes, max_bits)
    assert partition(found) == {frozenset(pair) for pair in near_pairs(hashes, max_bits)}
    assert (len(partition(found)), found.num_chained) == (300, 0)
    assert not found.chained.any()


@pytest.mark.parametrize("max_bits", [2, 4, 8])
def test_hashes_that_agree_in_most_bits_are_compared_just_as_fully(max_bits, monkeypatch):
    """Bits that never vary must not weaken the search: 2,000 hashes in 26 of the bits."""
    monkeypatch.setattr(near_copies, "_MOST_PICTURES", 10**6)
    random = np.random.default_rng(5)
    hashes = (random.integers(0, 2**26, 2000, dtype=np.uint64) << np.uint64(17)) | np.uint64(0xABC)
    found = near_groups(hashes, max_bits)
    assert partition(found)
    for first, second in near_pairs(hashes, max_bits):
        cut_apart = found.chained[first] and found.chained[second]
        assert found.group_of[first] == found.group_of[second] >= 0 or cut_apart
    for members in partition(found):
        assert_one_leads(hashes[list(members)], max_bits)


def assert_one_leads(members, max_bits):
    """Asserts that a group has a member that is near all others."""
    distances = np.bitwise_count(members[:, None] ^ members[None, :])
    assert (distances <= max_bits).all(axis=1).any()


def test_a_chain_is_cut_around_leaders_and_reported():
    chain = hashes_of(*((1 << 4 * step) - 1 for step in range(9)))  # neighbors are 4 bits apart
    far = hashes_of(0xFFFF << 48)
    found = near_groups(np.concatenate([chain, far]), 4)
    assert all(found.group_of[a] != found.group_of[b] for a, b in pairwise([0, 3, 6]))
    for members in partition(found):
        assert_one_leads(chain[list(members)], 4)
    assert found.num_chained == 1
    assert found.chained.tolist() == [True] * 9 + [False]
    assert found.group_of[9] == -1


def test_a_large_group_is_cut_at_its_limit(monkeypatch):
    monkeypatch.setattr(near_copies, "_MOST_PICTURES", 20)
    crowd = hashes_of(*(1 << bit for bit in range(64)))  # each 2 bits from every other
    found = near_groups(crowd, 2)
    assert sorted(len(members) for members in partition(found)) == [4, 20, 20, 20]
    assert found.num_chained == 1


def test_a_giant_chain_is_split_at_its_longest_steps():
    """Steps of 1 and 4 bits alternate: with at most 4 bits this is one chain, with fewer bits it is pairs."""
    hashes = walk(4000, [1, 4], np.random.default_rng(3))
    found = near_groups(hashes, 4)
    assert (found.group_of[::2] == found.group_of[1::2])[found.group_of[::2] >= 0].mean() > 0.9
    assert 1600 < len(partition(found)) < 2010  # some hashes are near others by chance, which gives short chains
    assert found.num_chained == 1
    assert found.chained.all()


def test_a_crowd_of_similar_hashes_makes_no_large_group():
    random = np.random.default_rng(3)
    found = near_groups(np.unique(random.integers(0, 2**14, 6000, dtype=np.uint64)), 4)
    assert found.num_chained == 1
    assert max(map(len, partition(found)), default=0) <= 50


def test_the_order_of_the_pictures_changes_nothing():
    random = np.random.default_rng(11)
    hashes = np.concatenate([walk(5, [3], random) for _ in range(300)])
    order = random.permutation(len(hashes))
    found, shuffled = near_groups(hashes, 4), near_groups(hashes[order], 4)
    assert found.num_chained > 200
    np.testing.assert_array_equal(found.group_of[order], shuffled.group_of)
    np.testing.assert_array_equal(found.chained[order], shuffled.chained)


def test_no_group_has_two_names_and_none_is_held_together_by_another_name():
    found = near_groups(hashes_of(0, 1, 0b1111, 0b11111111, 0), 4, names=np.array([0, 0, 1, 0, 1]))
    assert partition(found) == {frozenset({0, 1}), frozenset({2, 4})}
    assert found.any_name.tolist() == near_groups(hashes_of(0, 1, 0b1111, 0b11111111, 0), 4).group_of.tolist()


def test_pictures_of_one_color_are_no_near_copies():
    hashes = (1 << 63, 0, 1 << 63, 0, 255, 255)  # white, black, white, black, two copies
    pictures = [picture("s:a.jpg", facts={"perceptual_hash": value}) for value in hashes]
    found = near_copy_groups(pictures, np.zeros(6, np.int64), 4)
    assert found.group_of.tolist()[:4] == found.any_name.tolist()[:4] == [-1] * 4
    assert found.group_of[4] == found.group_of[5] >= 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@from_table
def test_1_6_million_hashes_take_under_5_minutes_and_4_gb(kind, max_bits):
    done = ran(sys.executable, "-c", SCALE, kind, max_bits, check=True, timeout=590)
    figures = json.loads(done.stdout)
    assert figures["seconds"] < 300
    assert figures["megabytes"] < 4000
    assert figures["together"] > (0.99 if kind != "skewed" else 0.9)
    assert figures["oversized"] == (kind == "blank")
