"""The folder of a registry, and the only code that changes it.

    registry/NAME-VERSION-HASH/     a bundle, complete and verified before it gets this name, and never changed after
    registry/current                the pointer: a symbolic link to one of these folders, replaced by a rename
    registry/history.jsonl          every change of the pointer
    registry/reports/               the comparisons that promotions were decided by

Whoever resolves the pointer once reads one whole bundle, whatever happens meanwhile, because no bundle is changed or
removed. A crash leaves the old pointer, and perhaps a hidden folder that the next promotion removes.
"""

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from models.bundle import BUNDLE_FILE, Bundle, file_sha256, load_bundle
from models.errors import DataError
from training.atomic_file import sync_folder
from training.registry.history import Change, append_change, entries_in_use, read_history

CURRENT: Final = "current"
REPORTS: Final = "reports"
_LOCK: Final = ".lock"
_DRAFT: Final = ".draft-"
_HASH_DIGITS: Final = 12


class Registry:
    """A folder of bundles with a pointer.

    Args:
        folder: The folder; the first promotion creates it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def current(self) -> str | None:
        """Name of the entry that the pointer names; None before the first promotion.

        Raises:
            DataError: The pointer is not a link to an entry of the registry.
        """
        pointer = self.folder / CURRENT
        if not pointer.is_symlink():
            if pointer.exists():
                raise _bad_pointer(pointer, "a file or folder")
            return None
        target = pointer.readlink()
        if len(target.parts) != 1:
            raise _bad_pointer(pointer, target)
        return target.name

    def require_exists(self) -> None:
        """Refuses a folder that is missing.

        Raises:
            DataError: There is no such folder.
        """
        if not self.folder.is_dir():
            raise DataError("there is no registry", value=self.folder, remedy="promote a bundle first")

    def entries(self) -> list[str]:
        """Returns the names of all bundles, sorted."""
        return sorted(
            path.parent.name
            for path in self.folder.glob(f"*/{BUNDLE_FILE}")
            if path.parent.name != CURRENT and not path.parent.name.startswith(".")
        )

    def load(self, entry: str) -> Bundle:
        """Reads and verifies a bundle.

        Raises:
            BundleError: It is missing or damaged.
        """
        return load_bundle(self.folder / entry)

    def promote(self, bundle: Bundle, *, expected: str | None, report: str = "", accepted: str = "") -> str:
        """Copies a bundle into the registry, verifies the copy, and lets the pointer name it.

        Args:
            bundle: The verified bundle.
            expected: Entry that the pointer names, according to the caller's decision.
            report: Report of the comparison, relative to the registry.
            accepted: Why a person promotes a bundle that the comparison refused.

        Returns:
            The name of its entry.

        Raises:
            BundleError: The copy fails verification.
            DataError: The pointer names another entry by now, or already this one, or another process is at work.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._require_unmoved(expected)
            entry = self._add(bundle)
            if entry == expected:
                raise DataError("the pointer already names this bundle", value=entry, remedy="promote another bundle")
            change = Change(
                time=_now(), action="promote", before=expected, after=entry, report=report, accepted=accepted
            )
            self._change(change)
        return entry

    def roll_back(self) -> tuple[str, str]:
        """Lets the pointer name the entry from before the last promotion that was not rolled back yet.

        Returns:
            The entry before and the entry since.

        Raises:
            BundleError: The earlier bundle is missing or damaged; the pointer stays.
            DataError: There is no earlier entry, or another process is at work.
        """
        self.require_exists()
        with self._locked():
            in_use = entries_in_use(read_history(self.folder), self.current)
            if len(in_use) < 2:
                raise DataError(
                    "the history has no earlier bundle to go back to",
                    value=self.current or "no bundle",
                    remedy="promote a bundle instead",
                )
            before, after = in_use[-1], in_use[-2]
            self.load(after)
            self._change(Change(time=_now(), action="rollback", before=before, after=after))
        return before, after

    def _add(self, bundle: Bundle) -> str:
        """Copies a bundle to its entry, unless it is there already."""
        for abandoned in self.folder.glob(f"{_DRAFT}*"):
            shutil.rmtree(abandoned)
        entry = entry_name(bundle)
        if not (self.folder / entry).exists():
            draft = self.folder / f"{_DRAFT}{entry}"
            _copy(bundle, draft)
            load_bundle(draft)
            draft.rename(self.folder / entry)
            sync_folder(self.folder)
        self.load(entry)
        return entry

    def _change(self, change: Change) -> None:
        """Writes the history, then replaces the pointer; readers see the old one or the new one."""
        append_change(self.folder, change)
        new = self.folder / f".{CURRENT}.{uuid.uuid4().hex}"
        try:
            new.symlink_to(change.after, target_is_directory=True)
            new.replace(self.folder / CURRENT)
        finally:
            new.unlink(missing_ok=True)
        sync_folder(self.folder)

    def _require_unmoved(self, expected: str | None) -> None:
        if self.current != expected:
            raise DataError(
                "the registry's pointer was changed in the meantime",
                value=self.current,
                limit=expected or "no pointer",
                remedy="run the command again",
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lets one process at a time change the registry; the lock of a dead process is free."""
        with (self.folder / _LOCK).open("wb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DataError(
                    "another process is changing the registry", value=self.folder, remedy="wait for it to end"
                ) from error
            yield


def entry_name(bundle: Bundle) -> str:
    """Returns NAME-VERSION-HASH; the hash is that of `bundle.json`, which holds the hashes of all other files."""
    sha256 = file_sha256(bundle.folder / BUNDLE_FILE)
    name = re.sub(r"[^A-Za-z0-9._]+", "-", f"{bundle.record.name}-{bundle.record.version}").strip(".-")
    return f"{name or 'bundle'}-{sha256[:_HASH_DIGITS]}"


def _copy(bundle: Bundle, target: Path) -> None:
    """Copies the files that `bundle.json` lists, and writes them to the disk."""
    target.mkdir()
    for name in (*bundle.record.files, BUNDLE_FILE):
        with (bundle.folder / name).open("rb") as source, (target / name).open("wb") as copy:
            shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())
    sync_folder(target)


def _bad_pointer(pointer: Path, value: object) -> DataError:
    return DataError(
        f"{pointer} is not the pointer of a registry",
        value=value,
        limit="a symbolic link to a folder beside it",
        remedy="remove it, and promote a bundle",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
