"""The conclusions, tables and plots of the ablation study."""

import statistics
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from training.insight.studies import claims
from training.insight.studies.claims import CLAIMS, ClaimVerdict, Unit, verdict
from training.insight.studies.figures import (
    epoch_s,
    known,
    memory_gb,
    of_arm,
    pairs,
    pictures_per_s,
    points_more,
    times,
    top1_percent,
    trained_px,
)
from training.insight.studies.intervals import Interval
from training.insight.studies.ladder import Step
from training.insight.studies.plots import Bars, Curves, Point
from training.insight.studies.report import Content, Finding, Table, spread
from training.insight.studies.results import ArmResult

_LIMITS: Final = (
    "At equal epochs, a larger batch takes fewer steps. Top-1 is that of the last epoch on the validation pictures. "
    "All arms after best_rate keep the rate that was best for the baseline at batch size 4; a larger batch may need "
    "another. All arms run on the same PyTorch, so the effect of a translation layer is not measured."
)


class Ablation(msgspec.Struct):
    """The results of the ablation so far."""

    device: Literal["cuda", "cpu"]
    steps: tuple[Step, ...]
    recipe_px: int
    """Picture size of the recipe, which the claims about speed and memory are about, px."""
    chance: float = 0.0
    """Top-1 of random answers."""
    sweep: list[ArmResult] = []
    """The baseline with each learning rate."""
    best_rate: float | None = None
    equal_epochs: list[ArmResult] = []
    equal_time: list[ArmResult] = []
    budget_s: float | None = None
    """Seconds of training at equal time."""

    @property
    def verdicts(self) -> list[ClaimVerdict]:
        """One verdict on each claim."""
        facts: dict[str, Any] = {"device": self.device, "recipe_px": self.recipe_px, "chance": self.chance}
        return [verdict(claim, self.steps, self.equal_epochs, **facts) for claim in CLAIMS]


def describe(found: Ablation, weights: str, schedule: str) -> Content:
    """Describes the results; `schedule` says how each arm trains."""
    return Content(
        name="ablation",
        title="Ablation of the 7.9 points",
        about=_about(found, weights, schedule),
        arms=found.equal_epochs,
        other_runs={"rates": found.sweep, "equal time": found.equal_time},
        tables=_tables(found),
        findings=_findings(found),
        plots=_plots(found),
    )


def _about(found: Ablation, weights: str, schedule: str) -> str:
    num_pictures = {epoch.num_pictures for one in found.equal_epochs for epoch in one.epochs if epoch.num_pictures}
    text = (
        "A developer reported that the reference recipe raised top-1 from 72.3 % to 80.2 %, and what each part of it "
        f"contributed. This study measures the parts. Every arm starts from {weights}, {schedule}. Each arm is its "
        "parent and one change. There are "
        f"{' and '.join(f'{count:,}' for count in sorted(num_pictures)) or 'no'} validation pictures."
    )
    if found.budget_s is not None:
        text += (
            f" At equal time, every arm trains for {found.budget_s:.1f} s, with a schedule of as many epochs as fit."
        )
    if found.device == "cpu":
        text += " On a CPU, the arms about a GPU are left out."
    return text


def _findings(found: Ablation) -> list[Finding]:
    rule = " ".join((claims.__doc__ or "").partition("\n\n")[2].replace("\n* ", " ").split())
    return [
        *(Finding("verdict", _verdict_text(each)) for each in found.verdicts),
        *_rate(found),
        *_failures(found),
        Finding("rule", rule),
        Finding("limits", _LIMITS),
    ]


def _rate(found: Ablation) -> list[Finding]:
    """The baseline's learning rate, and whether it is the smallest or largest of those tried."""
    if found.best_rate is None:
        return []
    if not found.sweep:
        return [Finding("best rate", f"The rate of best_rate, {found.best_rate:g}, was set without a search.")]
    rates = [one.arm.name for one in found.sweep if not one.error]
    at_edge = len(rates) > 1 and f"rate_{found.best_rate:g}" in (rates[0], rates[-1])
    warning = " It is at the edge of those tried: a better one may lie beyond." if at_edge else ""
    return [Finding("best rate", f"The baseline's best rate of those tried is {found.best_rate:g}.{warning}")]


def _failures(found: Ablation) -> list[Finding]:
    parts = {"": found.sweep, " at equal epochs": found.equal_epochs, " at equal time": found.equal_time}
    return [
        Finding("failure", f"{one.arm.name} failed with seed {one.seed}{part}: {one.error}")
        for part, runs in parts.items()
        for one in runs
        if one.error
    ]


def _verdict_text(each: ClaimVerdict) -> str:
    measured = "" if each.measured is None else f" {_interval(each.measured, each.claim.unit)}."
    return f"{each.claim.name}, claimed {each.claim.text}: **{each.word}**.{measured} {each.reason}"


def _tables(found: Ablation) -> list[Table]:
    rows = [
        [each.claim.name, each.claim.text, _interval(each.measured, each.claim.unit), each.word]
        for each in found.verdicts
    ]
    verdicts = Table("Verdicts", ["claim", "claimed", "measured (95 % interval)", "verdict"], rows)
    return [verdicts, _step_table(found), _arm_table(found), *_sweep_table(found)]


def _step_table(found: Ablation) -> Table:
    rows = []
    for step in found.steps:
        ours, theirs = (of_arm(found.equal_epochs, name) for name in (step.name, step.parent))
        timed = points_more(of_arm(found.equal_time, step.name), of_arm(found.equal_time, step.parent))
        points = points_more(ours, theirs)
        if points is None and timed is None:
            continue
        rows.append(
            [
                f"{step.name}: {step.change}",
                step.parent,
                _interval(points, "points"),
                _interval(timed, "points"),
                _interval(times(ours, theirs, pictures_per_s), "times"),
                _interval(times(ours, theirs, memory_gb), "times"),
            ]
        )
    columns = ["arm: its change", "against", "points, equal epochs", "points, equal time", "pictures/s", "GPU memory"]
    return Table(f"Each step against its parent{_size(found)}, with 95 % interval", columns, rows)


def _arm_table(found: Ablation) -> Table:
    columns = ["arm", "top-1 %, equal epochs", "top-1 %, equal time", "epochs in that time", "epoch, s", "pictures/s"]
    rows = []
    for step in found.steps:
        equal, timed = (of_arm(results, step.name) for results in (found.equal_epochs, found.equal_time))
        row = [
            _accuracy(equal),
            _accuracy(timed),
            spread((len(result.epochs) or None for result in timed), digits=0),
            spread(known(epoch_s, equal), digits=2),
            spread(known(pictures_per_s, equal)),
            spread(known(memory_gb, equal), digits=2),
        ]
        if equal or timed:
            rows.append([step.name, *row])
    return Table(f"Arms{_size(found)}; median [range] over the seeds", [*columns, "GPU memory, GB"], rows)


def _sweep_table(found: Ablation) -> list[Table]:
    rows = [[one.arm.name.removeprefix("rate_"), _accuracy([one]), spread([_loss(one)], 3)] for one in found.sweep]
    columns = ["rate", "top-1 %", "validation loss"]
    return [Table("The baseline with each learning rate, one seed", columns, rows)] if rows else []


def _plots(found: Ablation) -> list[Bars | Curves]:
    """Learning curves at equal epochs and at equal time, and the effect of each step."""
    points = {
        f"{step.name} – {step.parent}": [
            ours - theirs
            for ours, theirs in pairs(
                of_arm(found.equal_epochs, step.name), of_arm(found.equal_epochs, step.parent), top1_percent
            ).values()
        ]
        for step in found.steps
    }
    title = "Each step against its parent, equal epochs: median and range of the seeds"
    measured = {name: values for name, values in points.items() if values}
    axes = "epoch", "validation top-1, %"
    drawn: list[Bars | Curves] = [
        Bars("steps", title, "points of validation top-1", measured, mark=0.0),
        Curves("epochs", "Equal epochs", *axes, _curves(found, found.equal_epochs)),
    ]
    if found.equal_time:
        curves = _curves(found, found.equal_time, by_time=True)
        drawn.append(Curves("time", "Equal time", "seconds of training", axes[1], curves))
    return drawn


def _curves(found: Ablation, results: Sequence[ArmResult], *, by_time: bool = False) -> dict[str, list[list[Point]]]:
    """The validations of each arm, one line per seed."""
    series = {}
    for step in found.steps:
        runs = [one for one in of_arm(results, step.name) if one.epochs and not one.error]
        if runs:
            series[step.name] = [_line(one, _positions(runs, by_time=by_time)) for one in runs]
    return series


def _positions(runs: Sequence[ArmResult], *, by_time: bool) -> list[float]:
    """The x values of an arm's epochs: their numbers, or the median over the seeds of the time at their end."""
    longest = max(len(one.epochs) for one in runs)
    if not by_time:
        return [float(number) for number in range(1, longest + 1)]
    ends = [[sum(epoch.seconds for epoch in one.epochs[: number + 1]) for number in range(longest)] for one in runs]
    return [statistics.median(at) for at in zip(*ends, strict=True)]


def _line(run: ArmResult, positions: Sequence[float]) -> list[Point]:
    placed = zip(positions, run.epochs, strict=False)
    return [(at, 100 * epoch.top1) for at, epoch in placed if epoch.top1 is not None]


def _accuracy(results: Sequence[ArmResult]) -> str:
    failed = bool(results) and all(result.error for result in results)
    return "failed" if failed else spread(known(top1_percent, results))


def _size(found: Ablation) -> str:
    side_px = trained_px(found.equal_epochs)
    return f" at {side_px} px" if side_px else ""


def _loss(result: ArmResult) -> float | None:
    return result.epochs[-1].loss if result.epochs and not result.error else None


def _interval(interval: Interval | None, unit: Unit) -> str:
    """An interval with its unit; a dash for None."""

    def number(value: float) -> str:
        if unit == "points":
            return f"{round(value, 1) + 0.0:+.1f}"  # + 0.0 turns -0.0 into 0.0
        return f"{value:.2f} ×"

    if interval is None:
        return "–"
    less = " less" if unit == "times less" else ""
    if interval.low is None or interval.high is None:
        return f"{number(interval.mean)}{less} (one seed)"
    return f"{number(interval.mean)}{less} ({number(interval.low)} to {number(interval.high)})"
