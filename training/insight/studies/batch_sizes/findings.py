"""Whether bigger is better, by rule.

A size is better or worse than the smallest when the 95 % interval of the paired difference in validation top-1 lies
above or below 0 (see `points_interval`: other seeds and other pictures); otherwise the two are not told apart. One seed
tells nothing apart, and one comparison in twenty strays that far by chance. Speed: a batch is as fast as the fastest
when it is within 3 % of it, the rule that the tuner follows too.
"""

import statistics
from collections.abc import Iterator
from typing import Literal

import msgspec

from training.insight.studies.batch_sizes.grid import AUGMENTATIONS, Cell, Found
from training.insight.studies.figures import memory_gb, pictures_per_s, short_run_per_s
from training.insight.studies.intervals import Interval
from training.insight.studies.report import Finding
from training.insight.tuning.rates import RULE
from training.insight.tuning.search import NEAR

Word = Literal["better", "worse", "not told apart"]


def findings(found: Found) -> list[Finding]:
    """Every sentence that the figures give cause to; the answer first."""
    rules = (_bigger_is_better, _throughput, _accuracy, _scaling, _augmentation, _memory, _cpu_to_gpu, _failed)
    return [finding for rule in rules for finding in rule(found)]


def word(difference: Interval) -> Word:
    """The verdict on a difference of validation top-1."""
    if difference.low is None or difference.high is None or difference.low <= 0 <= difference.high:
        return "not told apart"
    return "better" if difference.low > 0 else "worse"


def _bigger_is_better(found: Found) -> Iterator[Finding]:
    for by_time in (True, False):
        words = [each for first in _settings(found) for each in _words(found, first, by_time=by_time).values()]
        if words:
            text = f"Is bigger better, after {_basis(by_time=by_time)}? {_answer(words)}"
            yield Finding("bigger_is_better", text)


def _answer(words: list[Word]) -> str:
    better, worse, total = words.count("better"), words.count("worse"), len(words)
    counts = f"of {total} comparisons with the smallest batch {better} are better, {worse} worse"
    rest = f", {total - better - worse} not told apart."
    if better == total:
        return f"Yes: all {total} comparisons with the smallest batch are better."
    if better and worse:
        return f"It depends on the setting: {counts}{rest}"
    if better:
        return f"Partly: {counts}{rest}"
    if worse:
        return f"No: {counts}{rest}"
    return f"Not shown: none of {total} comparisons with the smallest batch can be told apart from chance."


def _settings(found: Found) -> list[Cell]:
    """The smallest batch of every setting: augmentation by rate."""
    return [cell for cell in found.grid.cells if cell.size == found.grid.sizes[0]]


def _basis(*, by_time: bool) -> str:
    return "equal time" if by_time else "equal epochs"


def _differences(found: Found, first: Cell, *, by_time: bool) -> dict[int, Interval]:
    """Size -> points of top-1 beside the smallest batch of the same setting."""
    larger = [msgspec.structs.replace(first, size=size) for size in found.grid.sizes[1:]]
    known = {cell.size: found.difference(cell, first, by_time=by_time) for cell in larger}
    return {size: difference for size, difference in known.items() if difference is not None}


def _words(found: Found, first: Cell, *, by_time: bool) -> dict[int, Word]:
    return {size: word(difference) for size, difference in _differences(found, first, by_time=by_time).items()}


def _throughput(found: Found) -> Iterator[Finding]:
    for augmentation in AUGMENTATIONS:
        speeds = {
            size: found.figures(pictures_per_s, Cell(size, augmentation, scaled=False)) for size in found.grid.sizes
        }
        middle = {size: statistics.median(values) for size, values in speeds.items() if values}
        if len(middle) < 2:
            continue
        fastest = max(middle, key=lambda size: middle[size])
        enough = min(size for size in middle if middle[size] >= (1 - NEAR) * middle[fastest])
        smallest = min(middle)
        text = f"{augmentation.capitalize()} augmentation: batch {fastest} is fastest with "
        text += f"{middle[fastest]:,.1f} pictures/s"
        if enough == smallest:
            text += f", and batch {smallest}, the smallest, is within {100 * NEAR:g} % of it: larger ones buy no speed."
        else:
            text += f", {middle[fastest] / middle[smallest]:.2f} times batch {smallest}; "
            text += f"batch {enough} is the smallest within {100 * NEAR:g} % of it."
        yield Finding("throughput", text)


def _accuracy(found: Found) -> Iterator[Finding]:
    for by_time in (False, True):
        for first in _settings(found):
            differences = _differences(found, first, by_time=by_time)
            if differences:
                told = f"{_setting(first)}: {_sorted(differences, first)}"
                yield Finding("accuracy", f"After {_basis(by_time=by_time)}, {told}")


def _setting(cell: Cell) -> str:
    return f"{cell.augmentation} augmentation, {'scaled' if cell.scaled else 'unscaled'} rate"


def _sorted(differences: dict[int, Interval], first: Cell) -> str:
    """The sizes by what became of them."""
    groups: dict[Word, list[str]] = {}
    for size, difference in differences.items():
        groups.setdefault(word(difference), []).append(f"{size} ({difference.mean:+.1f} points)")
    told = "; ".join(f"{verdict}: {', '.join(sizes)}" for verdict, sizes in groups.items())
    return f"beside batch {first.size}, {told}."


def _scaling(found: Found) -> Iterator[Finding]:
    grid = found.grid
    for augmentation in AUGMENTATIONS:
        cell = Cell(grid.sizes[-1], augmentation, scaled=True)
        unscaled = msgspec.structs.replace(cell, scaled=False)
        difference = found.difference(cell, unscaled)
        if difference is not None and grid.name(cell) != grid.name(unscaled):
            yield Finding(
                "scaling",
                f"Rates that scale with {RULE}, at batch {cell.size}, {augmentation} augmentation, equal "
                f"epochs: {_points(difference)} beside unscaled ones.",
            )


def _augmentation(found: Found) -> Iterator[Finding]:
    for size in sorted({found.grid.sizes[0], found.grid.sizes[-1]}):
        for by_time in (False, True):
            heavy, light = (Cell(size, each, scaled=True) for each in ("heavy", "light"))
            difference = found.difference(heavy, light, by_time=by_time)
            if difference is not None:
                text = f"Heavy augmentation at batch {size}, scaled rate, {_basis(by_time=by_time)}: "
                yield Finding("augmentation", f"{text}{_points(difference)} beside light augmentation.")


def _points(difference: Interval) -> str:
    interval = "" if difference.low is None else f" ({difference.low:+.1f} to {difference.high:+.1f})"
    return f"{difference.mean:+.1f} points{interval}, {word(difference)}"


def _memory(found: Found) -> Iterator[Finding]:
    if found.device == "cpu":
        yield Finding("memory", "GPU memory is not measured: CPU.")
        return
    peaks = {size: found.figures(memory_gb, Cell(size, "light", scaled=False)) for size in found.grid.sizes}
    middle = {size: statistics.median(values) for size, values in peaks.items() if values}
    if len(middle) > 1:
        small, large = min(middle), max(middle)
        each = 1000 * (middle[large] - middle[small]) / (large - small)
        text = f"Memory: {middle[small]:.2f} GB at batch {small}, {middle[large]:.2f} GB at batch {large}: "
        yield Finding("memory", f"{text}{each:,.0f} MB for every picture more.")


def _cpu_to_gpu(found: Found) -> Iterator[Finding]:
    if found.device == "cpu":
        yield Finding("cpu_to_gpu", "What a GPU gains over the CPU is not measured: this study trained on the CPU.")
        return
    cell = Cell(found.grid.sizes[0], "light", scaled=False)
    speeds, cpu = found.figures(pictures_per_s, cell), None if found.cpu is None else short_run_per_s(found.cpu)
    if cpu is None or not speeds:
        why = found.cpu.error if found.cpu is not None and found.cpu.error else "one of the two runs is missing"
        yield Finding("cpu_to_gpu", f"What the GPU gains over the CPU is not measured: {why}")
        return
    gpu = statistics.median(speeds)
    yield Finding(
        "cpu_to_gpu",
        f"The GPU trains {gpu:,.1f} pictures/s and the same machine's CPU {cpu:,.2f} in FP32, both at batch "
        f"{cell.size}: {gpu / cpu:,.0f} times.",
    )


def _failed(found: Found) -> Iterator[Finding]:
    told = {each.arm.name: each.error for each in (*found.equal_epochs, *found.equal_time) if each.error}
    for name, error in told.items():
        yield Finding("failed", f"{name} gave no figures: {error}")
