"""Figures of runs: one run's speed, memory and accuracy, and two arms beside one another, seed by seed.

The same seed sees the same pictures in the same order, and its runs stand next to one another in time.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence

from training.insight.studies.intervals import Interval, points_interval, ratio_interval
from training.insight.studies.results import ArmResult

Figure = Callable[[ArmResult], float | None]
"""What is read from one run; None where the run does not tell."""


def pictures_per_s(result: ArmResult) -> float | None:
    """Speed behind the warm-up, median of the epochs; None where no epoch tells it."""
    speeds = [epoch.pictures_per_s for epoch in result.steady_epochs]
    return statistics.median(speeds) if speeds and not result.error else None


def short_run_per_s(result: ArmResult) -> float | None:
    """Speed between two readings of the losses: for runs with few epochs or none, whose begin and end would count."""
    return None if result.error else result.readings_per_s or pictures_per_s(result)


def epoch_s(result: ArmResult) -> float | None:
    """How long an epoch takes behind the warm-up, median, s."""
    seconds = [epoch.seconds for epoch in result.steady_epochs]
    return statistics.median(seconds) if seconds and not result.error else None


def memory_gb(result: ArmResult) -> float | None:
    """Most GPU memory held, GB."""
    known = [epoch.memory_gb for epoch in result.epochs if epoch.memory_gb is not None]
    return max(known) if known and not result.error else None


def top1_points(result: ArmResult) -> float | None:
    """Validation top-1 at the end, in percent."""
    return None if result.top1 is None else 100 * result.top1


def of_arm(results: Iterable[ArmResult], name: str) -> list[ArmResult]:
    """The results of one arm, by seed."""
    return sorted((result for result in results if result.arm.name == name), key=lambda result: result.seed)


def known(figure: Figure, results: Iterable[ArmResult]) -> list[float]:
    """The figure of every run that tells it."""
    return [found for found in map(figure, results) if found is not None]


def pairs(ours: Iterable[ArmResult], theirs: Iterable[ArmResult], figure: Figure) -> dict[int, tuple[float, float]]:
    """Seed -> the figure of both, for every seed that tells both."""
    others = {result.seed: figure(result) for result in theirs}
    both = {result.seed: (figure(result), others.get(result.seed)) for result in ours}
    return {seed: (a, b) for seed, (a, b) in sorted(both.items()) if a is not None and b is not None}


def times(ours: Iterable[ArmResult], theirs: Iterable[ArmResult], figure: Figure) -> Interval | None:
    """How many times the figure of theirs ours is; None where no seed tells both."""
    both = pairs(ours, theirs, figure).values()
    return ratio_interval([our / their for our, their in both]) if both else None


def points_more(ours: Sequence[ArmResult], theirs: Sequence[ArmResult]) -> Interval | None:
    """Percentage points of validation top-1 that ours has more; None where no seed tells both."""
    both = pairs(ours, theirs, top1_points)
    if not both:
        return None
    judged = [one.epochs[-1].num_pictures or 0 for one in (*ours, *theirs) if one.seed in both and one.epochs]
    return points_interval([our - their for our, their in both.values()], min(judged))


def median_s(results: Iterable[ArmResult]) -> float | None:
    """Seconds of training, median over the seeds."""
    seconds = [result.seconds for result in results]
    return statistics.median(seconds) if seconds else None


def equal_time_epochs(results: Sequence[ArmResult], budget_s: float) -> int:
    """How many epochs of an arm come nearest to a budget, at the pace of its epochs behind the warm-up; at least one.

    The schedule is laid out for them, so that the rates have fallen when the time is over.
    """
    pace = statistics.median(epoch.seconds for result in results for epoch in result.steady_epochs or result.epochs)
    return max(1, round(budget_s / pace))
