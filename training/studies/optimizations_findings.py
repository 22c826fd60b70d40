"""What the optimizations' figures say, by rule, surprises above all.

A speed-up counts when the median over the rounds is further from 1 than the noise (see `Measured.noise`), memory when
it differs by 2 %. Causes are named only where other arms of the same study point to them, and as what they are: a
reading of the figures.
"""

import math
import statistics
from collections.abc import Iterator
from typing import Final

from training.studies.optimizations_figures import BASELINE, PARTS, Measured
from training.studies.report import Finding

_MEMORY_TOLERANCE: Final = 0.02
_CEILING_ARMS: Final = 3
_COMBINATIONS: Final = tuple(name for name, parts in PARTS.items() if len(parts) > 1)


def findings(measured: Measured) -> list[Finding]:
    """Every sentence that the figures give cause to."""
    rules = (_noise, _fastest, _memory, _slower_alone, _cudnn_alone, _combinations, _ceiling, _warm_up, _failed)
    return [finding for rule in rules for finding in rule(measured)]


def _noise(measured: Measured) -> Iterator[Finding]:
    source = "arms that are the same to a CPU" if measured.no_operations else "the baseline's epochs"
    yield Finding("noise", f"Differences in speed below {measured.noise:.1%} are noise, as {source} show, or 2 %.")


def _fastest(measured: Measured) -> Iterator[Finding]:
    speedups = {name: statistics.median(measured.speedups(name)) for name in measured.names if measured.speedups(name)}
    best = max(speedups, key=lambda name: speedups[name], default=BASELINE)
    if best == BASELINE or speedups[best] <= 1 + measured.noise:
        yield Finding("fastest", "Nothing is faster than the baseline beyond the noise.")
        return
    text = f"Fastest is {best}: {speedups[best]:.2f} times the baseline."
    if "all" in speedups and speedups["all"] < speedups[best] * (1 - measured.noise):
        text += (
            f" That is faster than all together ({speedups['all']:.2f} times): leave the others out on this machine."
        )
    yield Finding("fastest", text)


def _memory(measured: Measured) -> Iterator[Finding]:
    full, mixed = measured.memory_gb(BASELINE), measured.memory_gb("amp")
    if full is None or mixed is None:
        yield Finding("amp_memory", "Memory is not measured: " + _why_no_memory(measured))
        return
    figures = f"{mixed:.2f} GB with mixed precision, {full:.2f} GB in FP32"
    if mixed <= full * (1 + _MEMORY_TOLERANCE):
        same = mixed >= full * (1 - _MEMORY_TOLERANCE)
        yield Finding("amp_memory", f"Mixed precision holds {'no less' if same else 'less'} memory: {figures}.")
        return
    yield Finding("amp_memory", f"Mixed precision holds MORE memory, not less: {figures}. {_cause_of_memory(measured)}")


def _why_no_memory(measured: Measured) -> str:
    return "CPU." if measured.device == "cpu" else "the baseline or the arm with mixed precision gave no figure."


def _cause_of_memory(measured: Measured) -> str:
    """cuDNN's choice of kernels is the one part of memory that another arm changes."""
    full, timed = measured.memory_gb(BASELINE), measured.memory_gb("amp+cudnn")
    if full is None or timed is None:
        return "Where it goes was not measured, as there is no arm with cudnn.benchmark beside it."
    if timed <= full * (1 + _MEMORY_TOLERANCE):
        return f"With cudnn.benchmark it holds {timed:.2f} GB, so the surplus is workspace of kernels picked untimed."
    return (
        f"With kernels that cuDNN timed it still holds {timed:.2f} GB, so the workspace of untimed ones is not the "
        "cause. Weights stay in FP32 and autocast keeps half-precision copies besides: with a small batch or small "
        "pictures these outweigh what the activations save."
    )


def _slower_alone(measured: Measured) -> Iterator[Finding]:
    for name, parts in PARTS.items():
        speedups = measured.speedups(name)
        if len(parts) != 1 or name == "cudnn" or not speedups or statistics.median(speedups) >= 1 - measured.noise:
            continue
        text = f"{name} alone is slower than the baseline: {statistics.median(speedups):.2f} times its speed."
        if name == "amp" and measured.device == "cpu":
            text += " That is so where a processor has no bf16 arithmetic of its own and converts to FP32 and back."
        if name == "channels_last" and statistics.median(measured.speedups("all") or [0.0]) > 1 + measured.noise:
            text += (
                " Its kernels pay in half precision, if at all; the arm with everything is faster than the baseline."
            )
        yield Finding("slower_alone", text)


def _cudnn_alone(measured: Measured) -> Iterator[Finding]:
    speedups = measured.speedups("cudnn")
    if not speedups:
        return
    middle = statistics.median(speedups)
    if measured.device == "cpu":
        yield Finding(
            "cudnn_alone",
            f"cuDNN does not run on a CPU: cudnn.benchmark should give 1.00 times the speed, and gave {middle:.2f} "
            f"({min(speedups):.2f} to {max(speedups):.2f}); the difference is noise.",
        )
        return
    if middle < 1 - measured.noise:
        text = f"cudnn.benchmark alone costs time even after the warm-up: {middle:.2f} times the baseline's speed."
    elif middle <= 1 + measured.noise:
        text = f"cudnn.benchmark alone changes nothing beyond the noise after the warm-up ({middle:.2f} times)."
    else:
        text = f"cudnn.benchmark alone gives {middle:.2f} times the speed after the warm-up."
    yield Finding("cudnn_alone", f"{text} {_payback(measured, 'cudnn')}")


def _payback(measured: Measured, name: str) -> str:
    """After how many epochs a longer warm-up has paid."""
    more = measured.warm_up_s(name) - measured.warm_up_s(BASELINE)
    epoch_s = measured.steady_epoch_s(BASELINE)
    if more <= measured.noise * epoch_s:
        return "Its warm-up is no longer than the baseline's."
    saved = epoch_s - measured.steady_epoch_s(name)
    if saved <= measured.noise * epoch_s:
        return f"Its warm-up takes {more:,.1f} s longer and is never repaid, as later epochs save nothing."
    epochs = math.ceil(more / saved)
    return f"Its warm-up takes {more:,.1f} s longer; saving {saved:,.1f} s an epoch repays it in {epochs} epochs."


def _combinations(measured: Measured) -> Iterator[Finding]:
    for name in _COMBINATIONS:
        expected, found = measured.product_of_parts(name), measured.ratios(name)
        rounds = expected.keys() & found.keys()
        if not rounds:
            continue
        quotient = statistics.median(found[seed] / expected[seed] for seed in rounds)
        figures = f"{statistics.median(found.values()):.2f} times, its parts multiply to "
        figures += f"{statistics.median(expected.values()):.2f} times"
        if quotient < 1 - measured.noise:
            yield Finding(
                "combination", f"{name} is slower than its parts: {figures}. {_cause(measured, name)}".rstrip()
            )
        elif quotient > 1 + measured.noise:
            yield Finding("combination", f"{name} is faster than its parts: {figures}; they help one another.")


def _cause(measured: Measured, name: str) -> str:
    """Which part gains nothing any more where the others are there already."""
    for smaller in measured.names:
        added = [part for part in PARTS[name] if part not in PARTS[smaller]]
        if smaller == BASELINE or len(added) != 1 or not set(PARTS[smaller]) < set(PARTS[name]):
            continue
        alone, on_top = measured.speedups(added[0]), list(measured.ratios(name, smaller).values())
        if alone and on_top and statistics.median(alone) > 1 + measured.noise >= statistics.median(on_top):
            return (
                f"{added[0]} gives {statistics.median(alone):.2f} times alone and {statistics.median(on_top):.2f} on "
                f"top of {smaller}: what it speeds up is no longer what a step waits for."
            )
    return "Each part shortens only its own share of a step, and what no part shortens weighs more (Amdahl 1967)."


def _ceiling(measured: Measured) -> Iterator[Finding]:
    ranked = sorted((statistics.median(measured.speeds(name)), name) for name in measured.names)[-_CEILING_ARMS:]
    if len(ranked) < _CEILING_ARMS:
        return
    (slowest, _), (fastest, best) = ranked[0], ranked[-1]
    gained = statistics.median(measured.speedups(best) or [1.0]) > 1 + measured.noise
    if gained and slowest >= fastest * (1 - measured.noise):
        names = ", ".join(name for _, name in ranked)
        yield Finding(
            "ceiling",
            f"The {_CEILING_ARMS} fastest arms ({names}) stop at the same {fastest:,.1f} pictures/s. Something that "
            "none of them changes may set the pace, most often the loader; the verdict in each run's log tells.",
        )


def _warm_up(measured: Measured) -> Iterator[Finding]:
    for name in measured.names:
        if name in {BASELINE, "cudnn"} or not measured.speedups(name):
            continue
        more = measured.warm_up_s(name) - measured.warm_up_s(BASELINE)
        if more > measured.noise * measured.steady_epoch_s(BASELINE):
            yield Finding("warm_up", f"{name}: {_payback(measured, name)}")


def _failed(measured: Measured) -> Iterator[Finding]:
    told: dict[str, str] = {}
    for result in measured.failed:
        told.setdefault(result.arm.name, result.error or "it ended before its first epoch did")
    for name, error in told.items():
        yield Finding("failed", f"{name} gave no figures: {error}")
