"""Program: lists, reviews and exports corrections, which are what people said about answers.

Commands:
  python -m serving.corrections list DIR                                  prints a line for each
  python -m serving.corrections review DIR ID... --reviewer ann           notes that they are right (or --wrong)
  python -m serving.corrections export DIR --reviewer ann --out NEW       writes what prepare.py table reads
  python -m serving.corrections report DIR                                counts where the model and people disagree
  python -m serving.corrections backup DIR --out NEW                      copies them while services go on
  python -m serving.corrections delete DIR ID...                          deletes them with their pictures
"""

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from models.program import explain_missing_packages, run_program

explain_missing_packages("make serve")

import msgspec
import tyro

from models.atomic_file import locked, sync
from models.errors import InputError
from models.file_structure import sniff_format
from models.metrics import share
from models.text_table import write_csv
from serving.corrections.record import Correction

if TYPE_CHECKING:
    from serving.corrections.store import Store

TABLE_FILE: Final = "corrections.csv"
_MOST_LISTED: Final = 30
_FORMULA: Final = re.compile(r"^(?=[=+\-@\t\r])")  # a spreadsheet runs a cell that begins so
Ids = Annotated[tuple[str, ...], tyro.conf.Positional]


class _OfStore(msgspec.Struct, frozen=True, kw_only=True):
    folder: tyro.conf.Positional[Path]
    """The folder of --corrections."""
    database: str = ""
    """As --corrections-database of the service."""


class List(_OfStore, frozen=True, kw_only=True):
    """Lists the corrections, the oldest first."""


class Review(_OfStore, frozen=True, kw_only=True):
    """Notes what a reviewer says of corrections."""

    ids: Ids
    """Their ids."""
    reviewer: str
    """Name of the reviewer."""
    wrong: bool = False
    """They are wrong."""


class Export(_OfStore, frozen=True, kw_only=True):
    """Writes confirmed corrections with pictures as a table for `prepare.py table`."""

    out: Path
    """New folder."""
    reviewer: Annotated[str, msgspec.Meta(min_length=1)]
    """Takes what this person has corrected (by the name of the API key) or found right."""


class Backup(_OfStore, frozen=True, kw_only=True):
    """Copies corrections and pictures while services go on; the copy is a folder for --corrections."""

    out: Path
    """New folder."""


class Report(_OfStore, frozen=True, kw_only=True):
    """Compares the model with what people are certain of, and no reviewer found wrong."""

    by: Annotated[str, tyro.conf.arg(name="model")] = ""
    """Name and version of one model; by default all that answered."""


class Delete(_OfStore, frozen=True, kw_only=True):
    """Deletes corrections and their pictures."""

    ids: Ids
    """Their ids."""


Command = List | Review | Export | Report | Backup | Delete


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program with the arguments of the command line, or those given."""
    run_program(Command, _run, arguments, prog="python -m serving.corrections", description=__doc__)


def _run(command: Command) -> None:
    from serving.corrections.store import opened  # the extra `corrections` is optional

    with opened(command.folder, command.database) as store:
        match command:
            case Export():
                said = export(command, store)
            case Backup():
                said = _backup(command, store)
            case Report():
                said = report([each for each in store.all() if command.by in {"", each.model}])
            case Review():
                number = store.review(command.ids, command.reviewer, accepted=not command.wrong)
                what = "wrong" if command.wrong else "right"
                said = f"{number:,} of {len(command.ids):,} corrections are noted as {what}."
            case Delete():
                said = f"{store.delete(command.ids):,} of {len(command.ids):,} corrections are deleted."
            case _:
                said = "\n".join(_line(each) for each in store.all()) or "There are no corrections."
        print(said)


def _line(each: Correction) -> str:
    state = {None: "", True: f"right, says {each.reviewer}", False: f"wrong, says {each.reviewer}"}[each.accepted]
    said = "right" if each.taxon_id == each.predicted else each.name
    parts = (each.correction_id, each.created, each.person, f"{each.predicted} {each.score:.2f}", said)
    certain = "certain" if each.certain else "not certain"
    return "  ".join(filter(None, (*parts, certain, f"{len(each.pictures)} pictures", state)))


def export(command: Export, store: "Store") -> str:
    """Writes the table and copies of the pictures; returns a sentence.

    Raises:
        InputError: The folder exists, or the reviewer confirms no picture.
    """
    with _new_folder(command.out) as draft:
        chosen = [
            each
            for each in store.all()
            if each.accepted is not False
            and (
                (each.accepted and each.reviewer == command.reviewer)
                or (each.certain and each.person == command.reviewer)
            )
        ]
        (draft / "pictures").mkdir()
        rows: dict[str, tuple[str, ...]] = {}
        names = _names_of(chosen)
        groups = _groups_of(chosen)
        for each in chosen:
            for sha256 in each.pictures:
                with suppress(FileNotFoundError):  # a service deletes what is too old meanwhile
                    if len(names[sha256]) == 1:
                        content = store.path(sha256).read_bytes()
                        name = f"pictures/{sha256}.{sniff_format(content).lower()}"
                        (draft / name).write_bytes(content)
                        rows[name] = (name, _FORMULA.sub("'", each.name), groups[sha256], "train", each.model)
        said = (
            f"{len(rows):,} pictures of {len(chosen):,} corrections; "
            f"{sum(len(found) > 1 for found in names.values()):,} with two names were left out"
        )
        if not rows:
            raise InputError(
                "no confirmed correction has a picture with one name",
                value=said,
                remedy="review some",
            )
        write_csv(draft / TABLE_FILE, ("path", "scientific_name", "group", "split", "model"), rows.values())
    return f"{said}. Next: python training/prepare.py table {command.out / TABLE_FILE} --out DATA"


def _backup(command: Backup, store: "Store") -> str:
    with _new_folder(command.out) as draft:
        number = store.backup(draft)
    return (
        f"{command.out} has {number:,} pictures and their corrections. To restore, start the service with this folder."
    )


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Gives a draft that becomes the new folder at the end of the block, on the disk, and is removed after an error."""
    if out.name in {"", ".."} or os.path.lexists(out):  # a link that leads nowhere, too
        raise InputError("the folder exists already", value=out, remedy="choose a new one with --out")
    beside = out.with_name(f".{out.name}.draft")
    draft = beside / out.name
    if os.path.lexists(beside) and not _is_draft(beside, draft.name):
        raise InputError(
            "the place for the draft of this folder has something else",
            value=beside,
            remedy="move it, or choose another --out",
        )
    remedy = "wait for it, or choose a new folder with --out"
    with locked(beside, "another process is writing this folder", remedy=remedy):
        try:
            shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
            draft.mkdir()
            yield draft
            for path in (*draft.rglob("*"), draft):
                sync(path)
            draft.rename(out)
            sync(out.parent)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _is_draft(folder: Path, name: str) -> bool:
    """Whether a process that was killed, or is at work, has made the folder."""
    if folder.is_symlink() or not (folder / ".lock").is_file():
        return False
    return {path.name for path in folder.iterdir()} <= {".lock", name}


def _names_of(chosen: Iterable[Correction]) -> dict[str, set[str]]:
    """Returns the names that each picture got."""
    names: dict[str, set[str]] = defaultdict(set)
    for each in chosen:
        for sha256 in each.pictures:
            names[sha256].add(each.name)
    return names


def _groups_of(chosen: Iterable[Correction]) -> dict[str, str]:
    """Returns the plant of each picture, as the hash of one of them: corrections that share one are about one plant."""
    other: dict[str, str] = {}  # picture -> one of the same plant; the last has itself

    def last(sha256: str) -> str:
        while other.setdefault(sha256, sha256) != sha256:
            other[sha256] = other[other[sha256]]  # half the way next time
            sha256 = other[sha256]
        return sha256

    for each in chosen:
        for sha256 in each.pictures:
            other[last(sha256)] = last(each.pictures[0])
    return {sha256: last(sha256) for sha256 in other}


def report(all_of_them: Iterable[Correction]) -> str:
    """Returns how often the model was right, in all and by what the plant was, most mistakes first."""
    trusted = [each for each in all_of_them if each.certain and each.accepted is not False]
    if not trusted:
        return "No correction is certain."
    by_name: dict[str, list[bool]] = defaultdict(list)
    for each in trusted:
        by_name[each.name].append(each.taxon_id == each.predicted)
    order = sorted(by_name.items(), key=lambda item: (-item[1].count(False), item[0]))
    lines = [
        _shares("all", list(chain.from_iterable(by_name.values()))),
        *(f"  {_shares(name, found)}" for name, found in order[:_MOST_LISTED]),
        "\nPeople correct what is wrong more often than what is right, so these figures are lower than the true ones.",
    ]
    return "\n".join(lines)


def _shares(name: str, right: Sequence[bool]) -> str:
    return f"{name}: {share(sum(right), len(right))} right"


if __name__ == "__main__":
    main()
