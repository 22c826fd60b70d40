"""run.json: what was asked, which bundle answered, and what came out. It decides whether a run can be continued."""

import hashlib
import io
import platform
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from models.bundle import BUNDLE_FILE, file_sha256
from models.bundle_record import read_record as read_bundle_record
from models.errors import InputError
from serving.folder.output import Output
from serving.machine import available_cores

RECORD_FILE: Final = "run.json"
_SECONDS_A_DAY: Final = 86_400


class BundleName(msgspec.Struct, frozen=True):
    """The bundle that answers."""

    name: str
    version: str
    sha256: str
    """Hash of its bundle.json, which holds the hashes of all its files."""


class RunRecord(msgspec.Struct, frozen=True):
    """The file run.json."""

    fingerprint: str
    """Hash of the bundle and of the options that change answers; another one cannot continue the run."""
    bundle: BundleName
    options: Mapping[str, Any]
    """The options that change answers."""
    machine: Mapping[str, Any]
    run_id: str
    """Another one after each --restart."""
    is_complete: bool = False
    """Whether every plant has a row."""
    num_plans: int = 0
    """`Plan.num_files` of the plan that the table was made from; another number: it is not complete after all."""
    counts: Mapping[str, int] = {}
    """Rows by status."""
    photographs_per_s: float | None = None
    """Photographs per second in the last run, from the first to the last row."""
    photographs_per_day: float | None = None
    listed: str = ""
    """What was listed."""
    snapshot: Mapping[str, int] | None = None
    """Folder -> its time of change when its files were listed, nanoseconds."""


def new_record(bundle: BundleName, options: Mapping[str, Any]) -> RunRecord:
    """Returns the record of a run that starts."""
    fingerprint = hashlib.sha256(msgspec.json.encode((bundle.sha256, options), order="sorted")).hexdigest()
    machine = {"system": platform.platform(), "num_cores": available_cores()}
    return RunRecord(fingerprint, bundle, options, machine, uuid.uuid4().hex[:8])


def bundle_name(folder: Path) -> BundleName:
    """Returns the name of a bundle, without reading its networks.

    Raises:
        BundleError: The bundle is missing or damaged.
    """
    path = folder / BUNDLE_FILE
    record, _ = read_bundle_record(path)
    return BundleName(record.name, record.version, file_sha256(path))


def read_record(output: Output) -> RunRecord | None:
    """Reads the record of a former run; None if there was none.

    Raises:
        InputError: The file is not such a record.
    """
    content = output.read(RECORD_FILE)
    try:
        return None if content is None else msgspec.json.decode(content, type=RunRecord)
    except msgspec.DecodeError as error:
        raise InputError(
            f"{RECORD_FILE} cannot be read", value=error, remedy="choose another --out, or start anew with --restart"
        ) from error


def start_record(output: Output, new: RunRecord) -> RunRecord:
    """Writes the record of a run that starts; returns the one that counts if several machines start at the same time.

    Raises:
        InputError: The other machine has another bundle or other options.
    """
    if output.create(RECORD_FILE, _encode(new)):
        return new
    former = read_record(output)
    assert former is not None
    require_same(former, new)
    return former


def write_record(output: Output, record: RunRecord) -> None:
    """Writes the record, in place of the former one."""
    output.replace(RECORD_FILE, io.BytesIO(_encode(record)))


def require_same(old: RunRecord, new: RunRecord) -> None:
    """Checks that a run continues with the same bundle and options.

    Raises:
        InputError: Something differs; the message names it.
    """
    if old.fingerprint == new.fingerprint:
        return
    before, now = (msgspec.json.decode(msgspec.json.encode(each.options)) for each in (old, new))
    changed = [f"{name} ({_shown(before.get(name))} before)" for name in now if before.get(name) != now[name]]
    if old.bundle != new.bundle:
        changed.insert(0, f"bundle ({old.bundle.name} {old.bundle.version} before)")
    raise InputError(
        "the results of another run are in this place",
        value=f"changed: {', '.join(changed)}",
        limit="a run continues with the same bundle and the same options",
        remedy="choose another --out, or start anew with --restart",
    )


def with_speed(record: RunRecord, num_photographs: int, seconds: float) -> RunRecord:
    """Returns the record with the speed of a run; unchanged if it answered nothing."""
    if num_photographs == 0 or seconds <= 0:
        return record
    rate = num_photographs / seconds
    return msgspec.structs.replace(
        record, photographs_per_s=round(rate, 2), photographs_per_day=round(rate * _SECONDS_A_DAY)
    )


def _shown(option: Any) -> str:
    return option if isinstance(option, str) else msgspec.json.encode(option).decode()[:100]


def _encode(record: RunRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
