"""Epithets of one genus that are so similar that one may be a misspelling of the other.

Not all pairs are compared: two words that are one letter apart become equal when that letter is removed from each (or
from the longer one), so only words with a common shortened form are compared.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

# Endings by which an epithet agrees with its genus (alba, albus, album), or which are mistaken for one another
# (thunbergi, thunbergii).
_ENDINGS: Final = ("ensis", "ense", "ii", "us", "um", "is", "os", "on", "ae", "a", "e", "i")
_SHORTEST_STEM: Final = 3
_LONG_STEM: Final = 6  # from this length on, stems that differ by one letter are likely a misspelling


def similar_pairs(epithets: Sequence[str]) -> list[tuple[int, int]]:
    """Returns pairs of epithets that differ by one letter, by their Latin ending, or, if long, by both.

    Args:
        epithets: Of one genus, in lower case. Epithets with digits are generated names and never similar.

    Returns:
        Positions of each pair, ascending.
    """
    by_form: dict[str, list[int]] = {}
    for position, epithet in enumerate(epithets):
        if not any(char.isdigit() for char in epithet):
            for form in _shortened_forms(epithet):
                by_form.setdefault(form, []).append(position)
    candidates = {pair for positions in by_form.values() for pair in combinations(positions, 2)}
    return sorted(pair for pair in candidates if _similar(epithets[pair[0]], epithets[pair[1]]))


def _shortened_forms(epithet: str) -> Iterable[str]:
    stem = _stem(epithet)
    return {short for word in (epithet, stem) for short in (word, *_without_one_letter(word))}


def _without_one_letter(word: str) -> Iterable[str]:
    return (word[:cut] + word[cut + 1 :] for cut in range(len(word)))


def _similar(first: str, second: str) -> bool:
    stems = _stem(first), _stem(second)
    if first == second:
        return False
    if stems[0] == stems[1] or _one_letter_apart(first, second):
        return True
    return min(map(len, stems)) >= _LONG_STEM and _one_letter_apart(*stems)


def _stem(epithet: str) -> str:
    """Returns the word without its ending."""
    for ending in _ENDINGS:
        if epithet.endswith(ending) and len(epithet) - len(ending) >= _SHORTEST_STEM:
            return epithet.removesuffix(ending)
    return epithet


def _one_letter_apart(first: str, second: str) -> bool:
    """Returns whether one letter is replaced, added or missing."""
    if abs(len(first) - len(second)) > 1:
        return False
    start = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    if start is None:
        return first != second
    if len(first) == len(second):
        return first[start + 1 :] == second[start + 1 :]
    short, long = sorted((first, second), key=len)
    return short[start:] == long[start + 1 :]
