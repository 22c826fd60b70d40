"""What people open beside the table: the contact sheet, the sorted copies and the judgment."""

import io
from collections.abc import Iterator
from pathlib import Path

import msgspec

from models.bundle import load_bundle
from serving.folder.command import IdentifyFolder
from serving.folder.output import Output
from serving.folder.parts import PartFiles, remove_parts
from serving.folder.photographs import Store
from serving.folder.plan import Plan, remove_plans
from serving.folder.record import RECORD_FILE
from serving.folder.sheet import SHEET_FILE, contact_sheet
from serving.folder.sorting import sort_photographs
from serving.folder.tables import CSV_TABLE, PARQUET_TABLE
from serving.folder.truth import TRUTH_FILE, in_words, judge, trained_on
from serving.folder.truth_page import TRUTH_PAGE, truth_page
from serving.settings import Settings, find_bundle


def write_pages(command: IdentifyFolder, plan: Plan, files: PartFiles, store: Store) -> Iterator[str]:
    """Writes what the flags ask for beside the table; yields sentences about it."""
    if command.truth is not None:
        yield _judge(command, command.truth, plan, files, store)
    if command.html:
        page = contact_sheet(files.rows(plan), command.photographs, Path(command.out) / SHEET_FILE)
        files.output.replace(SHEET_FILE, io.BytesIO(page.encode()))
    if command.copy_to is not None:
        sort_photographs(
            files.rows(plan), plan.plants(), store, command.copy_to, command.by or "species", links=command.links
        )


def remove_results(output: Output) -> None:
    """Removes all that former runs wrote; the record goes last, so that a killed removal is noticed."""
    output.remove_unfinished()
    remove_parts(output)
    remove_plans(output)
    if output.read(RECORD_FILE) is not None:  # otherwise such files are of the user
        for name in (CSV_TABLE, PARQUET_TABLE, TRUTH_FILE, TRUTH_PAGE, SHEET_FILE, RECORD_FILE):
            output.remove(name)


def _judge(command: IdentifyFolder, column: str, plan: Plan, files: PartFiles, store: Store) -> str:
    bundle = load_bundle(find_bundle(Settings(bundle=command.bundle)))
    photographs = (each for name, plant in plan.plants().items() if name in plan.current for each in plant.photographs)
    report = judge(files.rows(plan), column, bundle)
    report = msgspec.structs.replace(report, trained_on=trained_on(bundle, photographs, store))
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    files.output.replace(TRUTH_FILE, io.BytesIO(encoded))
    files.output.replace(TRUTH_PAGE, io.BytesIO(truth_page(report).encode()))
    return f"{in_words(report)}; see {command.out}/{TRUTH_PAGE}"
