"""What the optimizations' figures say, by rule, surprises above all.

Speeds are told apart when the 95 % interval of their ratio over the rounds lies wholly beyond the tolerance (see
`Measured.tolerance`); memory likewise. One round tells nothing apart, and one comparison in twenty strays that far by
chance. Causes are named only where other arms of the same study point to them, and as what they are: a reading of the
figures.
"""

import math
from collections.abc import Iterator
from typing import Final

from training.insight.studies.figures import memory_gb, pictures_per_s
from training.insight.studies.intervals import Interval
from training.insight.studies.optimizations.figures import AGAIN, BASELINE, PARTS, Measured
from training.insight.studies.report import Finding

_ALIKE: Final = 0.05  # arms whose speeds surely differ by less stop at the same speed
_CEILING_ARMS: Final = 3
_COMBINATIONS: Final = tuple(name for name, parts in PARTS.items() if len(parts) > 1)


def findings(measured: Measured) -> list[Finding]:
    """Every sentence that the figures give cause to."""
    rules = (_noise, _fastest, _memory, _slower_alone, _cudnn_alone, _combinations, _ceiling, _warm_up)
    chosen = rules if measured.num_rounds > 1 else (_too_few_rounds,)
    return [finding for rule in (*chosen, _failed, _untimed) for finding in rule(measured)]


def _too_few_rounds(_: Measured) -> Iterator[Finding]:
    yield Finding("noise", "Nothing is told apart: that takes two rounds or more (--seeds), better three.")


def _noise(measured: Measured) -> Iterator[Finding]:
    text = (
        f"Speeds are told apart when the 95 % interval of their ratio over {measured.num_rounds} rounds lies more than "
        f"{100 * measured.tolerance:.1f} % from 1. One comparison in twenty strays that far by chance."
    )
    for (name, against), ratio in measured.same_arms.items():
        text += f" {name}, which is the same as {against} here, ran {_times(ratio)} as fast."
    yield Finding("noise", text)


def _fastest(measured: Measured) -> Iterator[Finding]:
    ratios = {name: measured.times(name) for name in measured.names if name not in {BASELINE, AGAIN}}
    speedups = {name: ratio for name, ratio in ratios.items() if ratio is not None and ratio.low is not None}
    best = max(speedups, key=lambda name: speedups[name].mean, default=BASELINE)
    if best == BASELINE or not measured.is_more(speedups[best]):
        yield Finding("fastest", "No arm is faster than the baseline by more than chance.")
        return
    text = f"Fastest is {best}: {_times(speedups[best])} the baseline's speed."
    alike = [name for name in speedups if name != best and not measured.is_less(measured.times(name, best))]
    if alike:
        text += f" Not told apart from it: {', '.join(alike)}."
    if "all" in speedups and measured.is_less(measured.times("all", best)):
        text += f" All together is slower, {_times(speedups['all'])}: leave the others out on this machine."
    yield Finding("fastest", text)


def _memory(measured: Measured) -> Iterator[Finding]:
    ratio = measured.times("amp", figure=memory_gb)
    full, mixed = measured.memory_gb(BASELINE), measured.memory_gb("amp")
    if ratio is None or full is None or mixed is None:
        why = "CPU." if measured.device == "cpu" else "the baseline or the arm with mixed precision gave no figure."
        yield Finding("amp_memory", f"Memory is not measured: {why}")
        return
    figures = f"{mixed:.2f} GB with mixed precision, {full:.2f} GB in FP32"
    if measured.is_more(ratio):
        text = f"Mixed precision holds MORE memory, not less: {figures}. {_cause_of_memory(measured)}"
    elif measured.is_less(ratio):
        text = f"Mixed precision holds less memory: {figures}."
    else:
        text = f"Mixed precision holds as much memory, as far as can be told: {figures}."
    yield Finding("amp_memory", text)


def _cause_of_memory(measured: Measured) -> str:
    """cuDNN's choice of kernels is the one part of memory that another arm changes."""
    timed, ratio = measured.memory_gb("amp+cudnn"), measured.times("amp+cudnn", figure=memory_gb)
    if timed is None:
        return "Where it goes was not measured, as there is no arm with cudnn.benchmark beside it."
    if not measured.is_more(ratio):
        return f"With cudnn.benchmark it holds {timed:.2f} GB, so the surplus is workspace of kernels picked untimed."
    return (
        f"With kernels that cuDNN timed it still holds {timed:.2f} GB, so the workspace of untimed ones is not the "
        "cause. Weights stay in FP32 and autocast keeps half-precision copies besides: with a small batch or small "
        "pictures these outweigh what the activations save."
    )


def _slower_alone(measured: Measured) -> Iterator[Finding]:
    for name, parts in PARTS.items():
        ratio = measured.times(name)
        if len(parts) != 1 or name == "cudnn" or ratio is None or not measured.is_less(ratio):
            continue
        text = f"{name} alone is slower than the baseline: {_times(ratio)} its speed."
        if name == "amp" and measured.device == "cpu":
            text += " That is so where a processor has no bf16 arithmetic of its own and converts to FP32 and back."
        if name == "channels_last" and measured.is_more(measured.times("all")):
            text += (
                " Its kernels pay in half precision, if at all; the arm with everything is faster than the baseline."
            )
        yield Finding("slower_alone", text)


def _cudnn_alone(measured: Measured) -> Iterator[Finding]:
    ratio = measured.times("cudnn")
    if ratio is None:
        return
    if measured.device == "cpu":
        text = (
            f"cuDNN does not run on a CPU: cudnn.benchmark should give 1.00 times the speed, and gave {_times(ratio)}."
        )
        yield Finding("cudnn_alone", text)
        return
    if measured.is_less(ratio):
        text = f"cudnn.benchmark alone costs time even after the warm-up: {_times(ratio)} the baseline's speed."
    elif measured.is_more(ratio):
        text = f"cudnn.benchmark alone gives {_times(ratio)} the speed after the warm-up."
    else:
        text = f"cudnn.benchmark alone cannot be told from the baseline after the warm-up: {_times(ratio)}."
    yield Finding("cudnn_alone", f"{text} {_payback(measured, 'cudnn')}".rstrip())


def _payback(measured: Measured, name: str) -> str:
    """After how many epochs a longer warm-up has paid; empty where no round tells its length."""
    more, epoch_s, its_epoch_s = measured.longer_warm_up_s(name), measured.epoch_s(BASELINE), measured.epoch_s(name)
    if more is None or epoch_s is None or its_epoch_s is None:
        return ""
    if not _is_longer(measured, more):
        return "Its warm-up cannot be told from the baseline's."
    if not measured.is_more(measured.times(name)):
        return f"Its warm-up takes {more.mean:,.1f} s longer and is never repaid, as far as can be told."
    saved = epoch_s - its_epoch_s
    epochs = f"{math.ceil(more.mean / saved)} epochs"
    return f"Its warm-up takes {more.mean:,.1f} s longer; saving {saved:,.1f} s an epoch repays it in {epochs}."


def _is_longer(measured: Measured, more: Interval) -> bool:
    return more.low is not None and more.low > measured.tolerance * (measured.epoch_s(BASELINE) or 0.0)


def _combinations(measured: Measured) -> Iterator[Finding]:
    for name in _COMBINATIONS:
        share, found = measured.interplay(name), measured.times(name)
        if share is None or found is None:
            continue
        figures = f"{found.mean:.2f} times, {_times(share)} what its parts multiply to"
        if measured.is_less(share):
            text = f"{name} is slower than its parts: {figures}. {_cause(measured, name)}"
            yield Finding("combination", text)
        elif measured.is_more(share):
            yield Finding("combination", f"{name} is faster than its parts: {figures}; they help one another.")


def _cause(measured: Measured, name: str) -> str:
    """Which part gains less where the others are there already."""
    for smaller in measured.names:
        added = [part for part in PARTS[name] if part not in PARTS[smaller]]
        if not PARTS[smaller] or len(added) != 1 or not set(PARTS[smaller]) < set(PARTS[name]):
            continue
        alone, on_top = measured.times(added[0]), measured.times(name, smaller)
        if alone is None or on_top is None or on_top.high is None:
            continue
        if not measured.is_more(alone) or measured.is_more(on_top) or on_top.high > alone.mean:
            continue
        return (
            f"{added[0]} gives {_times(alone)} the speed alone and {_times(on_top)} on top of {smaller}: what it "
            "speeds up is no longer what a step waits for."
        )
    return "Each part shortens only its own share of a step, and what no part shortens weighs more (Amdahl 1967)."


def _ceiling(measured: Measured) -> Iterator[Finding]:
    ratios = {name: measured.times(name) for name in measured.names}
    speedups = {name: ratio.mean for name, ratio in ratios.items() if ratio is not None}
    *others, best = sorted(speedups, key=lambda name: speedups[name])[-_CEILING_ARMS:] or [BASELINE]
    gaps = [measured.times(name, best) for name in others]
    if len(gaps) < _CEILING_ARMS - 1 or not measured.is_more(measured.times(best)):
        return
    if all(gap is not None and gap.low is not None and gap.low >= 1 - _ALIKE for gap in gaps):
        yield Finding(
            "ceiling",
            f"The {_CEILING_ARMS} fastest arms ({', '.join([*others, best])}) stop at the same speed, within "
            f"{100 * _ALIKE:g} %. Something that none of them changes may set the pace, most often the loader; the "
            "verdict in each run's log tells.",
        )


def _warm_up(measured: Measured) -> Iterator[Finding]:
    for name in measured.names:
        more = measured.longer_warm_up_s(name)
        if name not in {BASELINE, AGAIN, "cudnn"} and more is not None and _is_longer(measured, more):
            yield Finding("warm_up", f"{name}: {_payback(measured, name)}")


def _failed(measured: Measured) -> Iterator[Finding]:
    told: dict[str, str] = {}
    for result in measured.failed:
        told.setdefault(result.arm.name, result.error or "it ended before its first epoch did")
    for name, error in told.items():
        yield Finding("failed", f"{name} gave no figures: {error}")


def _untimed(measured: Measured) -> Iterator[Finding]:
    for name in measured.names:
        for result in measured.of(name):
            if pictures_per_s(result) is None:
                text = f"{name} has no speed in the round of seed {result.seed}: it was interrupted in every epoch that"
                yield Finding("untimed", f"{text} is timed. Remove its folder to run it anew.")


def _times(ratio: Interval) -> str:
    """How many times, with the interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.2f} times"
    return f"{ratio.mean:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"
