"""The rule of the release gate: why a bundle is not promoted."""

from collections.abc import Iterable
from typing import Final

from training.comparison.loss import PairedShare
from training.comparison.schema import ComparedBundle, Comparison

MOST_LOSS: Final = 0.005
"""A loss of half a point of top-1 is not accepted, and has to be ruled out with 97.5 % confidence."""


def refusals(comparison: Comparison) -> tuple[str, ...]:
    """Returns the reasons to refuse the promotion of the new bundle, as sentences; empty if there is none."""
    accuracy = comparison.accuracy
    held_out = [_not_held_out(which, bundle) for which, bundle in _bundles(comparison)]
    losses = [_too_much("micro", accuracy.micro_top1), _too_much("macro", accuracy.macro_top1)]
    return tuple(reason for reason in (*held_out, *losses) if reason)


def may_be_accepted(comparison: Comparison) -> bool:
    """Returns whether a person may promote a refused bundle: no loss is proved, and neither bundle saw the pictures."""
    seen = any(bundle.held_out.state == "seen" for _, bundle in _bundles(comparison))
    accuracy = comparison.accuracy
    return not seen and all(share.loss_interval_95[0] <= 0 for share in (accuracy.micro_top1, accuracy.macro_top1))


def reaches_limit(share: PairedShare) -> bool:
    """Returns whether the upper end of the interval of the loss is 0.5 points or more."""
    return share.loss_interval_95[1] >= MOST_LOSS


def _too_much(kind: str, share: PairedShare) -> str:
    if not reaches_limit(share):
        return ""
    low, high = (100 * end for end in share.loss_interval_95)
    return (
        f"The loss in {kind} top-1 is {100 * share.loss:+.2f} points (95 % interval {low:+.2f} to {high:+.2f}, "
        f"{share.num_plants:,} plants), and the interval must end below {100 * MOST_LOSS:+.2f} points."
    )


def _not_held_out(which: str, bundle: ComparedBundle) -> str:
    if bundle.held_out.state in {"verified", "stated"}:
        return ""
    remedy = " Give the data that it was trained on with --trained-on." if bundle.held_out.state == "unknown" else ""
    return f"The {which} bundle may not be judged on these pictures: {bundle.held_out.explanation}{remedy}"


def _bundles(comparison: Comparison) -> Iterable[tuple[str, ComparedBundle]]:
    return ("old", comparison.old), ("new", comparison.new)
