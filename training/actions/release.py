"""Compares bundles, and decides which one answers."""

from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from models.bundle import load_bundle
from models.errors import BundleError
from training.atomic_file import replace_together
from training.commands.release import Command, Compare, List, Measuring, Promote, Rollback
from training.comparison.compare import Comparing, compare
from training.comparison.loss import PairedShare
from training.comparison.page import HTML_FILE, comparison_files
from training.comparison.schema import Comparison
from training.dataset.manifest import Manifest
from training.loading.negatives import list_negatives
from training.registry.folder import CURRENT, Registry
from training.registry.history import completed_changes, read_history
from training.registry.promotion import promote
from training.toml_file import check_section, section_to_plain

_JUDGING_SPLITS: Final = ("test",)  # the other rows of a list of negatives may have been fitted on
_MOST_NAMES: Final = 20  # in one line; comparison.json has them all
_COLUMNS: Final = ("", "old", "new", "loss, points", "95 % interval", "plants")


def run(command: Command) -> None:
    """Runs one command.

    Raises:
        BotanifyError: An error that the user can correct, or a promotion that is refused.
    """
    command = check_section(section_to_plain(command), type(command), origin="of the flags")
    match command:
        case Compare():
            compare_bundles(command)
        case Promote():
            promote_bundle(command)
        case Rollback():
            roll_back(command)
        case List():
            list_registry(command)


def compare_bundles(command: Compare) -> Comparison:
    """Compares two bundles, prints the figures, and writes the comparison if `out` is given."""
    comparison = compare(load_bundle(command.old), load_bundle(command.new), _comparing(command, command.data))
    _print_comparison(comparison)
    for reason in comparison.refusals:
        print(f"A promotion would be refused. {reason}")
    if comparison.refusals and comparison.may_be_accepted:
        print("Nothing against it is proved: a person may promote it with --accept-uncertain.")
    if command.out is not None:
        replace_together(command.out, comparison_files(comparison))
        print(f"Written: {command.out / HTML_FILE}")
    return comparison


def promote_bundle(command: Promote) -> str:
    """Promotes a bundle and returns the name of its entry."""
    comparing = None if command.data is None else _comparing(command, command.data)
    done = promote(
        load_bundle(command.bundle),
        Registry(command.registry),
        comparing,
        accept_uncertain=command.accept_uncertain,
        show=_print_comparison,
    )
    if done.comparison is None:
        print("The first bundle of a registry is not compared with anything.")
    else:
        print(f"Report: {command.registry / done.report}")
    print(f"Current: {done.entry} (before: {done.before or 'none'})")
    print(f"Next: python -m serving --bundle {command.registry / CURRENT}, or SIGHUP to a service that has it")
    return done.entry


def roll_back(command: Rollback) -> str:
    """Goes one step back and returns the name of the entry that is current since."""
    before, after = Registry(command.registry).roll_back()
    print(f"Current: {after} (before: {before})")
    print("Next: SIGHUP to the service")
    return after


def list_registry(command: List) -> None:
    """Prints the bundles and the history of a registry."""
    registry = Registry(command.registry)
    registry.require_exists()
    current, changes = registry.current, read_history(command.registry)
    bundles = Table("", "entry", "sealed", "top-1", title=str(command.registry))
    for entry in registry.entries():
        bundles.add_row("current" if entry == current else "", entry, *_facts(registry, entry))
    Console().print(bundles)
    completed = completed_changes(changes, current)
    for change in changes:
        interrupted = "" if change in completed else " (interrupted: it did not happen)"
        accepted = f" (accepted: {change.accepted})" if change.accepted else ""
        print(f"{change.time} {change.action}: {change.before or 'none'} -> {change.after}{accepted}{interrupted}")


def _facts(registry: Registry, entry: str) -> tuple[str, str]:
    """Returns when a bundle was sealed, and its top-1; or why it cannot be read."""
    try:
        record = registry.load(entry).record
    except BundleError as error:
        return "damaged", str(error)
    top1 = next((metric for metric in record.metrics if metric.name == "top1_taxon"), None)
    return record.created, f"{top1.value:.1%} of {top1.num_pictures:,} ({top1.data})" if top1 else ""


def _comparing(command: Measuring, data: Path) -> Comparing:
    return Comparing(
        manifest=Manifest(data, command.shards),
        split=command.split,
        trained_on=tuple(Manifest(folder) for folder in command.trained_on),
        things=list_negatives(command.negatives, _JUDGING_SPLITS).paths,
        precision=command.precision,
        few_shot_limit=command.few_shot,
        num_speed_pairs=command.speed_pairs,
        workers=command.workers,
    )


def _print_comparison(comparison: Comparison) -> None:
    accuracy = comparison.accuracy
    taxa = f"{comparison.num_taxa:,} taxa that both bundles know"
    print(f"Compared on {comparison.num_pictures:,} pictures of {taxa} ({comparison.data}).")
    table = Table(*_COLUMNS)
    for name in accuracy.__struct_fields__:
        table.add_row(name.replace("_", " "), *_cells(getattr(accuracy, name)))
    Console().print(table)
    for title, names in (("New", comparison.names.added), ("Gone", comparison.names.removed)):
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        print(f"{title} taxa ({len(names):,}): {', '.join(names[:_MOST_NAMES]) or 'none'}{more}.")
    if comparison.names.renamed:
        print(f"Renamed taxa: {len(comparison.names.renamed):,}.")
    if comparison.num_left_out:
        print(f"{comparison.num_left_out:,} pictures were left out: a bundle does not know their taxon.")


def _cells(share: PairedShare) -> tuple[str, ...]:
    low, high = (f"{100 * end:+.2f}" for end in share.loss_interval_95)
    loss = f"{100 * share.loss:+.2f}"
    return f"{share.old:.1%}", f"{share.new:.1%}", loss, f"{low} to {high}", f"{share.num_plants:,}"
