"""Figures of a run, and of two arms compared seed by seed.

Runs with the same seed see the same pictures in the same order and are near in time, so that their ratios are paired.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence

from training.insight.studies.intervals import Interval, points_interval, ratio_interval
from training.insight.studies.results import ArmResult

Figure = Callable[[ArmResult], float | None]
"""Reads a figure of a run; None if the run does not have it."""


def pictures_per_s(result: ArmResult) -> float | None:
    """Training speed, median of the epochs after the warm-up."""
    speeds = [epoch.pictures_per_s for epoch in result.steady_epochs]
    return statistics.median(speeds) if speeds and not result.error else None


def epoch_s(result: ArmResult) -> float | None:
    """Duration of an epoch after the warm-up, median, s."""
    seconds = [epoch.seconds for epoch in result.steady_epochs]
    return statistics.median(seconds) if seconds and not result.error else None


def warm_up_s(result: ArmResult) -> float | None:
    """Additional duration of the first epoch, s; None if the run was interrupted."""
    steady_s = epoch_s(result)
    return None if steady_s is None or result.num_starts > 1 else result.epochs[0].seconds - steady_s


def memory_gb(result: ArmResult) -> float | None:
    """Peak GPU memory, GB."""
    measured = [epoch.memory_gb for epoch in result.epochs if epoch.memory_gb is not None]
    return max(measured) if measured and not result.error else None


def top1_percent(result: ArmResult) -> float | None:
    """Validation top-1 of the last epoch, percent."""
    return None if result.top1 is None else 100 * result.top1


def of_arm(results: Iterable[ArmResult], name: str) -> list[ArmResult]:
    """The results of one arm, by seed."""
    return sorted((result for result in results if result.arm.name == name), key=lambda result: result.seed)


def known(figure: Figure, results: Iterable[ArmResult]) -> list[float]:
    """The figure of each run that has it."""
    return [found for found in map(figure, results) if found is not None]


def pairs(ours: Iterable[ArmResult], theirs: Iterable[ArmResult], figure: Figure) -> dict[int, tuple[float, float]]:
    """The figures of two arms by seed, for the seeds that both arms have."""
    others = {result.seed: figure(result) for result in theirs}
    both = {result.seed: (figure(result), others.get(result.seed)) for result in ours}
    return {seed: (a, b) for seed, (a, b) in sorted(both.items()) if a is not None and b is not None}


def times(ours: Iterable[ArmResult], theirs: Iterable[ArmResult], figure: Figure) -> Interval | None:
    """Ratio of our figure to theirs; None if no seed has both."""
    both = pairs(ours, theirs, figure).values()
    return ratio_interval([our / their for our, their in both]) if both else None


def points_more(ours: Sequence[ArmResult], theirs: Sequence[ArmResult]) -> Interval | None:
    """Our validation top-1 minus theirs, percentage points; None if no seed has both."""
    both = pairs(ours, theirs, top1_percent)
    if not both:
        return None
    num_pictures = [one.epochs[-1].num_pictures or 0 for one in (*ours, *theirs) if one.seed in both and one.epochs]
    return points_interval([our - their for our, their in both.values()], min(num_pictures))


def median_s(results: Iterable[ArmResult]) -> float | None:
    """Seconds of training, median over the seeds."""
    seconds = [result.seconds for result in results]
    return statistics.median(seconds) if seconds else None


def equal_time_epochs(results: Sequence[ArmResult], budget_s: float) -> int:
    """The number of epochs whose duration is nearest to a budget, at least 1.

    The learning-rate schedule gets this length, so that the rates have decayed when the time is over.
    """
    pace = statistics.median(epoch.seconds for result in results for epoch in result.steady_epochs or result.epochs)
    return max(1, round(budget_s / pace))


def trained_px(results: Iterable[ArmResult]) -> int | None:
    """The side of the training pictures in the last epoch, px; None if it differs between the runs."""
    sides = {result.epochs[-1].side_px for result in results if result.epochs}
    return sides.pop() if len(sides) == 1 else None
