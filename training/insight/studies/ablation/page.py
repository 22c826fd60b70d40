"""The ablation as a study: verdicts in words, tables and plots."""

import statistics
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from training.insight.studies.ablation import claims
from training.insight.studies.ablation.claims import Unit, Verdict
from training.insight.studies.ablation.findings import (
    Ablation,
    effects,
    hardware_arms,
    point_differences,
    trained_px,
    verdicts,
)
from training.insight.studies.figures import (
    epoch_s,
    known,
    memory_gb,
    of_arm,
    pictures_per_s,
    short_run_per_s,
    top1_points,
)
from training.insight.studies.intervals import Interval
from training.insight.studies.plots import Bars, Curves, Plot, Point
from training.insight.studies.report import Finding, Study, Table, spread, unfinished
from training.insight.studies.results import ArmResult

_UNKNOWN: Final = "–"
_SPREAD: Final = "; median [least to most] over the seeds"
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
        tables=_tables(ablation),
        findings=_findings(ablation),
        details=_details(ablation),
    )


def _tables(ablation: Ablation) -> list[Table]:
    tables = [_verdict_table(ablation), _step_table(ablation), _arm_table(ablation)]
    if ablation.hardware:
        tables.append(_hardware_table(ablation))
    if ablation.sweep:
        tables.append(_sweep_table(ablation))
    return tables


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
    setting, size = ablation.setting, _at(trained_px(ablation.equal_epochs))
    pictures = {epoch.num_pictures for one in ablation.equal_epochs for epoch in one.epochs if epoch.num_pictures}
    judged = " and ".join(f"{count:,}" for count in sorted(pictures)) or "no"
    told = [
        f"Every arm starts from {setting.weights}, trains for {setting.epochs} epochs{size} with each of the seeds "
        f"{', '.join(map(str, setting.seeds))} and is judged on {judged} validation pictures.",
        "Each arm is its parent and one change, so that their difference has one cause. The baseline's rate "
        f"({setting.assumed_rate:g}) and its steps of decay ({setting.step_decay}) are assumed.",
    ]
    if ablation.budget_s is not None:
        told.append(
            f"At equal time every arm trains for {ablation.budget_s:.1f} s, with a schedule of as many epochs as fit."
        )
    if ablation.hardware:
        told.append(
            f"Speed and memory are judged by runs of {setting.hardware_s:g} s at {setting.hardware_px} px, the largest "
            "batches by runs of two steps at that size."
        )
    if ablation.device == "cpu":
        told.append("On a CPU the arms that are about a GPU are left out.")
    return " ".join(told)


def _findings(ablation: Ablation) -> list[Finding]:
    found = [Finding(f"verdict: {each.claim.name}", _in_words(each)) for each in verdicts(ablation)]
    rule = " ".join((claims.__doc__ or "").partition("\n\n")[2].replace("\n* ", " ").split())
    return [
        *unfinished(ablation.unfinished),
        *found,
        *_rate(ablation),
        *_failures(ablation),
        Finding("rule", rule),
        Finding("limits", _LIMITS),
    ]


def _rate(ablation: Ablation) -> list[Finding]:
    """Which rate the baseline was given, and whether a better one may lie beyond those tried."""
    rates = [one.arm.name for one in ablation.sweep if not one.error]
    if ablation.best_rate is None:
        return []
    if not ablation.sweep:
        return [Finding("best rate", f"The rate of best_rate, {ablation.best_rate:g}, was given and not searched for.")]
    edge = len(rates) > 1 and f"rate_{ablation.best_rate:g}" in (rates[0], rates[-1])
    warning = " It lies at the edge of those tried: a better one may lie beyond." if edge else ""
    return [Finding("best rate", f"The baseline's best rate of those tried is {ablation.best_rate:g}.{warning}")]


def _failures(ablation: Ablation) -> list[Finding]:
    parts = {
        "": ablation.sweep,
        " at equal epochs": ablation.equal_epochs,
        " at equal time": ablation.equal_time,
        " in a short run": ablation.hardware,
    }
    failures = [(one, part) for part, runs in parts.items() for one in runs if one.error]
    return [
        Finding("failure", f"{one.arm.name} failed with seed {one.seed}{part}: {one.error}") for one, part in failures
    ]


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
    return Table(f"Steps{_at(trained_px(ablation.equal_epochs))}", columns, rows)


def _arm_table(ablation: Ablation) -> Table:
    columns = ["arm", "top-1 %, equal epochs", "top-1 %, equal time", "epochs in that time", "epoch, s"]
    columns += ["first step, s", "pictures/s", "GPU memory, GB"]
    rows = []
    for step in ablation.steps:
        equal, timed = (of_arm(results, step.name) for results in (ablation.equal_epochs, ablation.equal_time))
        row = [
            _accuracy(equal),
            _accuracy(timed),
            spread((len(result.epochs) or None for result in timed), digits=0),
            spread(known(epoch_s, equal), digits=2),
            spread(result.seconds_to_first_step for result in equal),
            spread(known(pictures_per_s, equal)),
            spread(known(memory_gb, equal), digits=2),
        ]
        if equal or timed:
            rows.append([step.name, *row])
    return Table(f"Arms{_at(trained_px(ablation.equal_epochs))}{_SPREAD}", columns, rows)


def _hardware_table(ablation: Ablation) -> Table:
    rows = []
    for name in hardware_arms(ablation.steps):
        runs = of_arm(ablation.hardware, name)
        first_s = spread(result.seconds_to_first_step for result in runs)
        row = [spread(known(short_run_per_s, runs)), spread(known(memory_gb, runs), digits=2), first_s]
        rows.append([name, *row])
    columns = ["arm", "pictures/s", "GPU memory, GB", "first step, s"]
    return Table(f"Short runs at {ablation.setting.hardware_px} px{_SPREAD}", columns, rows)


def _sweep_table(ablation: Ablation) -> Table:
    rows = [[one.arm.name.removeprefix("rate_"), _accuracy([one]), spread([_loss(one)], 3)] for one in ablation.sweep]
    return Table("The baseline at each rate, one seed", ["rate", "top-1 %", "validation loss"], rows)


def _accuracy(results: Sequence[ArmResult]) -> str:
    failed = bool(results) and all(result.error for result in results)
    return "failed" if failed else spread(known(top1_points, results))


def _details(ablation: Ablation) -> dict[str, Any]:
    """What a program needs to come to the same verdicts, and the verdicts."""
    plain: dict[str, Any] = msgspec.to_builtins(ablation)
    kept = {name: plain[name] for name in plain if name not in ("setting", "equal_epochs")}
    return kept | {
        "verdicts": msgspec.to_builtins(verdicts(ablation)),
        "effects": msgspec.to_builtins(effects(ablation)),
    }


def _at(size: str) -> str:
    return f" at {size}" if size else ""


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
