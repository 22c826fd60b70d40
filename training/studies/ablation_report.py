"""The ablation as a study: verdicts in words, tables and plots."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from training.studies import verdicts as rules
from training.studies.ablation_findings import (
    Ablation,
    effects,
    memory_gb,
    of_arm,
    pictures_per_s,
    point_differences,
    top1_points,
    verdicts,
)
from training.studies.arms import ArmResult
from training.studies.plots import Bars, Curves, Plot, Point
from training.studies.report import Finding, Study, Table
from training.studies.verdicts import Interval, Unit, Verdict

_UNKNOWN: Final = "–"
_LIMITS: Final = (
    "At equal epochs a larger batch takes fewer steps. Top-1 is that of the last epoch on the validation pictures, "
    "never that of the best epoch. All arms behind best_rate keep the rate that was best for the baseline at batch 4; "
    "a larger batch may want another, which no arm tries. The whole recipe is compared with the baseline on one "
    "PyTorch: how fast or right a translation layer was, nothing here measures."
)


def as_study(ablation: Ablation) -> Study:
    """The ablation as it is written."""
    setting = ablation.setting
    return Study(
        name="ablation",
        title="The ablation of the 7.9 points",
        about=_about(ablation),
        machine=setting.machine,
        measured_on=setting.measured_on,
        recipe=setting.recipe,
        data=setting.data,
        flags=setting.flags,
        arms=ablation.equal_epochs,
        tables=[_verdict_table(ablation), _step_table(ablation), _arm_table(ablation), _sweep_table(ablation)],
        findings=_findings(ablation),
        details=_details(ablation),
    )


def plots(ablation: Ablation) -> list[Plot]:
    """Learning curves at equal epochs and at equal time, and what each step is worth."""
    drawn: list[Plot] = [
        Curves("epochs", "Equal epochs", "epoch", "validation top-1, %", _curves(ablation, ablation.equal_epochs)),
        Bars(
            "steps",
            "Each step beside its parent, equal epochs: median and range of the seeds",
            "points of validation top-1",
            {
                f"{step.name} – {step.parent}": point_differences(ablation.equal_epochs, step)
                for step in ablation.steps
                if step.parent
            },
            mark=0.0,
        ),
    ]
    if ablation.equal_time:
        series = _curves(ablation, ablation.equal_time, by_time=True)
        drawn.append(Curves("time", "Equal time", "seconds of training", "validation top-1, %", series))
    return drawn


def _about(ablation: Ablation) -> str:
    setting = ablation.setting
    pictures = {epoch.num_pictures for one in ablation.equal_epochs for epoch in one.epochs if epoch.num_pictures}
    judged = " and ".join(f"{count:,}" for count in sorted(pictures)) or "no"
    told = [
        f"Every arm starts from {setting.weights}, trains for {setting.epochs} epochs with each of the seeds "
        f"{', '.join(map(str, setting.seeds))} and is judged on {judged} validation pictures.",
        "Each arm is its parent and one change, so that their difference has one cause. The baseline's rate "
        f"({setting.assumed_rate:g}) and its steps of decay ({setting.step_decay}) are assumed.",
    ]
    if ablation.budget_s is not None:
        told.append(
            f"At equal time every arm trains for {ablation.budget_s:.1f} s, with a schedule of as many epochs as fit."
        )
    if ablation.device == "cpu":
        told.append("On a CPU the arms that are about a GPU are left out.")
    if ablation.unfinished:
        told.append(f"**Unfinished**: runs are missing, and verdicts may change ({ablation.unfinished})")
    return " ".join(told)


def _findings(ablation: Ablation) -> list[Finding]:
    found = [Finding(f"verdict: {each.claim.name}", _in_words(each)) for each in verdicts(ablation)]
    rates = [one.arm.name for one in ablation.sweep if not one.error]
    if ablation.best_rate is not None and len(rates) > 1:
        edge = f"rate_{ablation.best_rate:g}" in (rates[0], rates[-1])
        warning = " It lies at the edge of those tried: a better one may lie beyond." if edge else ""
        found.append(
            Finding("best rate", f"The baseline's best rate of those tried is {ablation.best_rate:g}.{warning}")
        )
    parts = {"": ablation.sweep, " at equal epochs": ablation.equal_epochs, " at equal time": ablation.equal_time}
    failures = [(one, part) for part, runs in parts.items() for one in runs if one.error]
    found += [
        Finding("failure", f"{one.arm.name} failed with seed {one.seed}{part}: {one.error}") for one, part in failures
    ]
    rule = " ".join((rules.__doc__ or "").partition("\n\n")[2].replace("\n* ", " ").split())
    return [*found, Finding("rule", rule), Finding("limits", _LIMITS)]


def _in_words(verdict: Verdict) -> str:
    measured = "" if verdict.measured is None else f" {_interval(verdict.measured, verdict.claim.unit)}."
    return f"{verdict.claim.name}, claimed {verdict.claim.said}: **{verdict.word}**.{measured} {verdict.reason}"


def _verdict_table(ablation: Ablation) -> Table:
    rows = [
        [each.claim.name, each.claim.said, _maybe(each.measured, each.claim.unit), each.word]
        for each in verdicts(ablation)
    ]
    return Table("Verdicts", ["claim", "claimed", "measured (95 % interval)", "verdict"], rows)


def _step_table(ablation: Ablation) -> Table:
    rows = [
        [
            f"{effect.step.name}: {effect.step.change}",
            effect.step.parent,
            _maybe(effect.points, "points"),
            _maybe(effect.points_equal_time, "points"),
            _maybe(effect.speed, "times"),
            _maybe(effect.memory, "times"),
        ]
        for effect in effects(ablation)
    ]
    columns = ["arm: its one change", "against", "points, equal epochs", "points, equal time", "pictures/s", "memory"]
    return Table("Steps", columns, rows)


def _arm_table(ablation: Ablation) -> Table:
    rows = []
    for step in ablation.steps:
        equal, timed = (of_arm(results, step.name) for results in (ablation.equal_epochs, ablation.equal_time))
        rows.append(
            [
                step.name,
                _spread(equal, top1_points, "{:.1f} %"),
                _spread(timed, top1_points, "{:.1f} %"),
                _spread(timed, lambda result: float(len(result.epochs)) or None, "{:.0f}"),
                _spread(equal, _epoch_s, "{:.2f}"),
                _spread(equal, lambda result: result.seconds_to_first_step, "{:.1f}"),
                _spread(equal, pictures_per_s, "{:.1f}"),
                _spread(equal, memory_gb, "{:.2f}"),
            ]
        )
    columns = ["arm", "top-1, equal epochs", "top-1, equal time", "epochs in that time", "epoch, s", "first step, s"]
    return Table("Arms: mean and range of the seeds", [*columns, "pictures/s", "GPU memory, GB"], rows)


def _sweep_table(ablation: Ablation) -> Table:
    rows = [
        [one.arm.name.removeprefix("rate_"), _spread([one], top1_points, "{:.1f} %"), _spread([one], _loss, "{:.3f}")]
        for one in ablation.sweep
    ]
    return Table("The baseline at each rate, one seed", ["rate", "top-1", "validation loss"], rows)


def _details(ablation: Ablation) -> dict[str, Any]:
    """What a program needs to come to the same verdicts, and the verdicts."""
    plain: dict[str, Any] = msgspec.to_builtins(ablation)
    kept = {name: plain[name] for name in plain if name not in ("setting", "equal_epochs")}
    return kept | {
        "verdicts": msgspec.to_builtins(verdicts(ablation)),
        "effects": msgspec.to_builtins(effects(ablation)),
    }


def _epoch_s(result: ArmResult) -> float | None:
    return statistics.median(epoch.seconds for epoch in result.steady_epochs) if result.epochs else None


def _loss(result: ArmResult) -> float | None:
    return result.epochs[-1].loss if result.epochs and not result.error else None


def _interval(interval: Interval, unit: Unit) -> str:
    def told(value: float) -> str:
        if unit == "points":
            return f"{round(value, 1) + 0.0:+.1f}"  # -0.04 is no fall
        return f"{value:.2f} ×"

    less = " less" if unit == "times less" else ""
    if interval.low is None or interval.high is None:
        return f"{told(interval.mean)}{less} (one seed)"
    return f"{told(interval.mean)}{less} ({told(interval.low)} to {told(interval.high)})"


def _maybe(interval: Interval | None, unit: Unit) -> str:
    return _UNKNOWN if interval is None else _interval(interval, unit)


def _spread(results: Sequence[ArmResult], value: Callable[[ArmResult], float | None], form: str) -> str:
    """Mean over the seeds, with the smallest and the largest."""
    known = [found for found in map(value, results) if found is not None]
    if not known:
        return "failed" if results and all(result.error for result in results) else _UNKNOWN
    mean = form.format(statistics.fmean(known))
    return mean if len(known) == 1 else f"{mean} ({form.format(min(known))} to {form.format(max(known))})"


def _curves(ablation: Ablation, results: Sequence[ArmResult], *, by_time: bool = False) -> dict[str, list[list[Point]]]:
    """Each arm's validations, one line a seed."""
    series = {}
    for step in ablation.steps:
        runs = [one for one in of_arm(results, step.name) if one.epochs and not one.error]
        if runs:
            series[step.name] = [_line(one, _positions(runs, by_time=by_time)) for one in runs]
    return series


def _positions(runs: Sequence[ArmResult], *, by_time: bool) -> list[float]:
    """Where the epochs of an arm stand: by their number, or at the median over the seeds of the time they ended."""
    longest = max(len(one.epochs) for one in runs)
    if not by_time:
        return [float(number) for number in range(1, longest + 1)]
    ends = [[sum(epoch.seconds for epoch in one.epochs[: number + 1]) for number in range(longest)] for one in runs]
    return [statistics.median(at) for at in zip(*ends, strict=True)]


def _line(run: ArmResult, positions: Sequence[float]) -> list[Point]:
    placed = zip(positions, run.epochs, strict=False)
    return [(at, 100 * epoch.top1) for at, epoch in placed if epoch.top1 is not None]
