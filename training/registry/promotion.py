"""Promotes a bundle: compares it with the current one, and lets it into the registry if nothing speaks against it."""

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from models.bundle import Bundle
from models.errors import BundleError, DataError
from training.atomic_file import replace_together
from training.comparison.compare import Comparing, compare
from training.comparison.page import HTML_FILE, comparison_files
from training.comparison.schema import Comparison
from training.registry.folder import REPORTS, Registry, entry_name


class Promotion(msgspec.Struct, frozen=True):
    """A promotion that was done."""

    entry: str
    """Name of the new bundle in the registry."""
    before: str | None
    """Name of the bundle that answered before; None if this is the first one."""
    comparison: Comparison | None
    """None for the first bundle, since there is nothing to compare it with."""
    report: str
    """The comparison's page, relative to the registry; empty without a comparison."""


def promote(
    new: Bundle,
    registry: Registry,
    comparing: Comparing | None,
    *,
    accept_uncertain: str = "",
    show: Callable[[Comparison], None] = lambda _: None,
) -> Promotion:
    """Promotes a bundle.

    Args:
        new: The verified bundle.
        registry: Where it becomes the current bundle.
        comparing: What it is compared on; only the first bundle of a registry may do without.
        accept_uncertain: Why a person accepts what is neither proved nor excluded; the history keeps it.
        show: Gets the comparison before the decision.

    Raises:
        BundleError: The comparison speaks against the bundle; the error gives the reasons and names the report. Or the
            copy in the registry fails verification.
        DataError: There is nothing to compare on, or the registry changed in the meantime.
    """
    before = registry.current
    if before is None:
        return Promotion(registry.promote(new, expected=None), None, None, "")
    if before == entry_name(new):
        raise DataError("the pointer already names this bundle", value=before, remedy="promote another bundle")
    if comparing is None:
        raise DataError(
            "a bundle is promoted only after a comparison with the current one",
            value=f"no data to compare {before} with it",
            remedy="give prepared data that neither was trained on, with --data DATA",
        )
    comparison = compare(registry.load(before), new, comparing)
    report = _write_report(registry, new, comparison)
    show(comparison)
    accepted = accept_uncertain.strip() if comparison.refusals and comparison.may_be_accepted else ""
    if comparison.refusals and not accepted:
        decide = ', or decide yourself with --accept-uncertain "WHY"' if comparison.may_be_accepted else ""
        raise BundleError(
            "the bundle is not promoted",
            value=" ".join(comparison.refusals),
            remedy=f"see {registry.folder / report}; more test pictures make the interval narrower{decide}",
        )
    entry = registry.promote(new, expected=before, report=report, accepted=accepted)
    return Promotion(entry, before, comparison, report)


def _write_report(registry: Registry, new: Bundle, comparison: Comparison) -> str:
    """Writes the comparison, also of a bundle that is refused, and returns the page relative to the registry."""
    name = f"{REPORTS}/{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{entry_name(new)}"
    replace_together(registry.folder / name, comparison_files(comparison))
    return f"{name}/{HTML_FILE}"
