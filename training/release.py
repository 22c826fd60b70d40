"""Program: decides which bundle answers, by `training/evaluate.py --bundle NEW --against OLD`.

Commands:
  python training/release.py promote BUNDLE REGISTRY --data DATA    makes it the current bundle, if it is not worse
  python training/release.py rollback REGISTRY                      goes back to the bundle before it
  python training/release.py list REGISTRY                          lists the bundles and the history
"""

import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, TypeVar

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages, run_program, tell_next

explain_missing_packages("make train-env")

import msgspec
import tyro
from rich.console import Console
from rich.table import Table

from models.atomic_file import ABANDONED_S, locked, remove_leftovers, replaced, sync, write_bytes, write_json
from models.bundle import BUNDLE_FILE, Bundle, file_sha256, load_bundle
from models.errors import BundleError, DataError
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.evaluate import Measuring, compare_bundles
from training.toml_file import Section

CURRENT: Final = "current"
HISTORY_FILE: Final = "history.jsonl"
_DRAFT: Final = ".draft-"


class Promote(Measuring, frozen=True, kw_only=True):
    """Makes a bundle the current one of a registry, unless it is worse or cannot be judged.

    It is compared with the current bundle on the taxa that both know. It is refused if the 95 % interval of the loss in
    micro or macro top-1 reaches 0.5 points; if fewer names are right, fewer plants or more unknown ones get one, or the
    calibration error is higher, provably or by more than a margin; or if either bundle was trained on the pictures, or
    this is unknown.
    """

    bundle: tyro.conf.Positional[Path]
    """Bundle to promote; it is copied into the registry."""
    registry: tyro.conf.Positional[Path]
    """Folder of the registry; the first promotion creates it, without a comparison."""
    data: Path | None = None
    """Folder written by training/prepare.py, with pictures that neither bundle was trained on."""
    accept_uncertain: str = ""
    """Why you promote the bundle although too few pictures exclude a loss, or it is not known what a bundle was trained
    on; the history keeps it. A loss of top-1 that is proved (its interval lies above 0) stays refused, and another one
    that is proved and above its margin."""


class Rollback(Section, frozen=True, kw_only=True):
    """Goes back to the bundle that was current before this one was promoted."""

    registry: tyro.conf.Positional[Path]
    """Folder of the registry."""


class List(Section, frozen=True, kw_only=True):
    """Lists the bundles of a registry, and the changes of its pointer."""

    registry: tyro.conf.Positional[Path]
    """Folder of the registry."""


Command = Promote | Rollback | List


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Command, run, description=__doc__)


def run(command: Command) -> None:
    """Runs one command; a promotion that is refused is a BundleError."""
    match command:
        case Promote() as command:
            promote(command)
        case Rollback() as command:
            before, after = _existing(command.registry).roll_back()
            print(f"Current: {after} (before: {before})")
            print("Next: SIGHUP to the service")
        case List() as command:
            list_registry(_existing(command.registry))


def promote(command: Promote) -> None:
    """Compares a bundle with the current one, and lets it into the registry if nothing speaks against it.

    Raises:
        BundleError: The comparison speaks against the bundle, or its copy in the registry fails verification.
        DataError: There is nothing to compare on, or the registry changed in the meantime.
    """
    registry = Registry(command.registry)
    new = load_bundle(command.bundle)
    before = registry.current
    report = ""
    accepted = ""
    if before == entry_name(new):
        raise DataError("the pointer already names this bundle", value=before, remedy="promote another bundle")
    if before is None:
        print("The first bundle of a registry is not compared with anything.")
    elif command.data is None:
        raise DataError(
            "a bundle is promoted only after a comparison with the current one",
            value=f"no data to compare {before} with it",
            remedy="give prepared data that neither was trained on, with --data DATA",
        )
    else:
        manifest = Manifest(command.data, command.shards)
        num_earlier = registry.count_comparisons(manifest.sha256, command.split)
        found = compare_bundles(load_bundle(registry.folder / before), new, command, manifest, num_earlier)
        report = f"reports/{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{entry_name(new)}.json"
        write_json(registry.folder / report, found)
        accepted = command.accept_uncertain.strip() if found.refusals and found.may_be_accepted else ""
        if found.refusals and not accepted:
            decide = ', or decide yourself with --accept-uncertain "WHY"' if found.may_be_accepted else ""
            raise BundleError(
                "the bundle is not promoted",
                value=" ".join(found.refusals),
                remedy=f"see {registry.folder / report}; more test pictures make the interval narrower{decide}",
            )
        print(f"Report: {registry.folder / report}")
    entry = registry.promote(new, expected=before, report=report, accepted=accepted)
    print(f"Current: {entry} (before: {before or 'none'})")
    tell_next(f"python -m serving --bundle {registry.folder / CURRENT}, or SIGHUP to a service that has it")


def list_registry(registry: "Registry") -> None:
    """Prints the bundles and the history of a registry."""
    current = registry.current
    bundles = Table("", "entry", "sealed", "top-1", title=str(registry.folder))
    entries = {path.parent.name for path in registry.folder.glob(f"[!.]*/{BUNDLE_FILE}")}
    for entry in sorted(entries - {CURRENT}):
        try:
            record = load_bundle(registry.folder / entry).record
            top1 = [metric for metric in record.metrics if metric.name == "top1_taxon"][:1]
            facts = record.created, "".join(f"{each.value:.1%} of {each.num_pictures:,} ({each.data})" for each in top1)
        except BundleError as error:
            facts = "damaged", str(error)
        bundles.add_row("current" if entry == current else "", entry, *facts)
    Console().print(bundles)
    for change in registry.history():
        accepted = f" (accepted: {change.accepted})" if change.accepted else ""
        print(f"{change.time} {change.action}: {change.before or 'none'} -> {change.after}{accepted}")


class Change(msgspec.Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}, omit_defaults=True):
    """A change of the pointer, as one line of `history.jsonl`.

    The line is written before the pointer is replaced. If a crash comes between the two, the line tells of a change
    that did not happen.
    """

    time: str = msgspec.field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    action: Literal["promote", "rollback"]
    before: str | None
    """Entry that the pointer named; None before the first promotion."""
    after: str
    """Entry that it names since."""
    report: str = ""
    """Report of the comparison, relative to the registry; empty if there was none."""
    accepted: str = ""
    """Why a person promoted a bundle that the comparison refused; empty if it did not."""


class _Report(msgspec.Struct, frozen=True):
    """What tells the set of a `Comparison`."""

    manifest_sha256: str
    data: str


_Record = TypeVar("_Record")


def _read(path: Path, decode: Callable[[bytes], _Record]) -> _Record:
    """Decodes a file of a registry; one that cannot be read is a DataError."""
    try:
        return decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read", value=error, remedy="restore it from a copy") from error


class Registry:
    """A folder of bundles with a pointer, and the only code that changes it.

        registry/NAME-VERSION-HASH/     a bundle, verified before it gets this name, and never changed after
        registry/current                the pointer: a symbolic link to one of these folders, replaced by a rename
        registry/history.jsonl          every change of the pointer
        registry/reports/               the comparisons that promotions were decided by

    Whoever resolves the pointer once reads one whole bundle, whatever happens meanwhile, because no bundle is changed
    or removed. A crash leaves the old pointer, and perhaps a hidden folder that the next promotion removes. The first
    promotion creates the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def current(self) -> str | None:
        """The entry that the pointer names; None before the first promotion. Another kind of pointer is a DataError."""
        pointer = self.folder / CURRENT
        if not os.path.lexists(pointer):
            return None
        target = pointer.readlink() if pointer.is_symlink() else None
        if target is None or len(target.parts) != 1:
            raise DataError(
                f"{pointer} is not the pointer of a registry",
                value=target or "a file or folder",
                limit="a symbolic link to a folder beside it",
                remedy="remove it, and promote a bundle",
            )
        return target.name

    def history(self) -> list[Change]:
        """Reads the changes, the oldest first; a line that cannot be read is a DataError."""
        path = self.folder / HISTORY_FILE
        return _read(path, msgspec.json.Decoder(Change).decode_lines) if path.exists() else []

    def count_comparisons(self, manifest_sha256: str, split: Split) -> int:
        """Counts the reports on a split of a manifest, of any format; one that cannot be read is a DataError."""
        decode = msgspec.json.Decoder(_Report).decode
        reports = [_read(path, decode) for path in self.folder.glob("reports/*.json")]
        ending = f", {split} split"
        return sum(each.manifest_sha256 == manifest_sha256 and each.data.endswith(ending) for each in reports)

    def promote(self, bundle: Bundle, *, expected: str | None, report: str = "", accepted: str = "") -> str:
        """Copies another bundle into the registry, verifies the copy, lets the pointer name it, returns its entry.

        Raises:
            BundleError: The copy fails verification.
            DataError: The pointer does not name the `expected` entry any more, or another process is at work.
        """
        with self._locked():
            if self.current != expected:
                raise DataError(
                    "the registry's pointer was changed in the meantime",
                    value=self.current,
                    limit=expected or "no pointer",
                    remedy="run the command again",
                )
            entry = self._add(bundle)
            self._change(Change(action="promote", before=expected, after=entry, report=report, accepted=accepted))
        return entry

    def roll_back(self) -> tuple[str, str]:
        """Undoes the last promotion that stands; returns the entry before and the entry since.

        If the earlier bundle is missing or damaged, the pointer stays, and a BundleError says so.
        """
        with self._locked():
            before = self.current
            after = self._earlier()
            if before is None or after is None:
                raise DataError(
                    "the history has no earlier bundle to go back to",
                    value=before or "no bundle",
                    remedy="promote a bundle instead",
                )
            load_bundle(self.folder / after)
            self._change(Change(action="rollback", before=before, after=after))
        return before, after

    def _earlier(self) -> str | None:
        """Returns the entry before the last promotion that no rollback has undone; None if there is none."""
        pointed = self.current
        num_undone = 0
        for change in reversed(self.history()):
            if change.after != pointed:  # a crash came before the pointer was replaced
                continue
            pointed = change.before
            if change.action == "promote" and num_undone == 0:
                return change.before
            num_undone += 1 if change.action == "rollback" else -1
        return None

    def _add(self, bundle: Bundle) -> str:
        """Copies the files that `bundle.json` lists to the bundle's entry, unless it is there already."""
        for abandoned in self.folder.glob(f"{_DRAFT}*"):
            shutil.rmtree(abandoned)
        entry = entry_name(bundle)
        if not (self.folder / entry).exists():
            draft = self.folder / f"{_DRAFT}{entry}"
            draft.mkdir()
            for name in (*bundle.record.files, BUNDLE_FILE):
                with (bundle.folder / name).open("rb") as source, replaced(draft / name) as copy:
                    shutil.copyfileobj(source, copy)
            load_bundle(draft)
            draft.rename(self.folder / entry)
            sync(self.folder)
        load_bundle(self.folder / entry)
        return entry

    def _change(self, change: Change) -> None:
        """Writes the history, then replaces the pointer; readers see the old one or the new one, never half a line."""
        changes = msgspec.json.Encoder().encode_lines([*self.history(), change])
        remove_leftovers(self.folder / HISTORY_FILE)
        remove_leftovers(self.folder / "reports" / "*", older_than_s=ABANDONED_S)  # which are written without the lock
        write_bytes(self.folder / HISTORY_FILE, changes)
        new = self.folder / f".{CURRENT}"
        new.unlink(missing_ok=True)  # left by a crash
        new.symlink_to(change.after)
        new.replace(self.folder / CURRENT)
        sync(self.folder)

    def _locked(self) -> AbstractContextManager[None]:
        """Lets one process at a time change the registry."""
        return locked(self.folder, "another process is changing the registry", remedy="wait for it to end")


def entry_name(bundle: Bundle) -> str:
    """Returns NAME-VERSION-HASH; the hash is that of `bundle.json`, which holds the hashes of all other files."""
    sha256 = file_sha256(bundle.folder / BUNDLE_FILE)
    name = re.sub(r"[^A-Za-z0-9._]+", "-", f"{bundle.record.name}-{bundle.record.version}").strip(".-")
    return f"{name or 'bundle'}-{sha256[:12]}"


def _existing(folder: Path) -> Registry:
    if not folder.is_dir():
        raise DataError("there is no registry", value=folder, remedy="promote a bundle first")
    return Registry(folder)


if __name__ == "__main__":
    main()
