"""The released folder: write, read, verify. It is the contract between training and serving.

A bundle is immutable once sealed. `bundle.json` lists the SHA-256 of every other file; loading verifies them all and
refuses a folder whose parts contradict one another, saying which and why.
"""

import hashlib
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from models.bundle_record import (
    FILE_NAME,
    Architecture,
    BundleRecord,
    CommercialUse,
    DataSource,
    FileName,
    Gate,
    LeftOut,
    Metric,
    NetworkFile,
    Precision,
    Sha256,
)
from models.errors import BotanifyError, BundleError
from models.golden import GOLDEN_PART, Golden
from models.session import OnnxSession
from models.taxonomy import Taxonomy

# The records belong to the bundle, so they are imported from here too.
__all__ = [
    "BUNDLE_FILE",
    "FORMAT_VERSION",
    "KNOWN_PARTS",
    "TAXA_FILE",
    "Architecture",
    "Bundle",
    "BundleRecord",
    "CommercialUse",
    "DataSource",
    "FileName",
    "Gate",
    "LeftOut",
    "Metric",
    "NetworkFile",
    "Precision",
    "Sha256",
    "file_sha256",
    "load_bundle",
    "seal_bundle",
]

FORMAT_VERSION: Final = 1
BUNDLE_FILE: Final = "bundle.json"
TAXA_FILE: Final = "taxa.json"
KNOWN_PARTS: Final[frozenset[str]] = frozenset({GOLDEN_PART})

_Record = TypeVar("_Record", bound=msgspec.Struct)


class Bundle(msgspec.Struct, frozen=True):
    """A verified bundle on disk."""

    folder: Path
    record: BundleRecord
    taxonomy: Taxonomy

    def network(self, precision: Precision) -> NetworkFile:
        """The network of one precision.

        Raises:
            BundleError: The bundle holds no such precision.
        """
        found = self.record.networks.get(precision)
        if found is None:
            raise BundleError(
                "the bundle holds no network of that precision",
                value=precision,
                limit=" or ".join(self.record.networks),
                remedy="ask for a precision that it holds or export that one too",
            )
        return found

    def golden(self) -> Golden | None:
        """The golden picture with its recorded answers; None in bundles that were sealed before there was one.

        Raises:
            BundleError: Its file cannot be read.
        """
        part = self.record.parts.get(GOLDEN_PART)
        return None if part is None else _read_json(self.folder / part, Golden)

    def network_path(self, precision: Precision) -> Path:
        """Where the file of a network stands."""
        return self.folder / self.network(precision).file

    def open_session(self, precision: Precision, *, instead: Path | None = None, **options: Any) -> OnnxSession:
        """Opens a network file and checks that it speaks of the same outputs as the bundle.

        Args:
            precision: Which network file.
            instead: The same network in another file, made from it.
            options: Passed to `OnnxSession`.

        Raises:
            BundleError: The file does not load or names other outputs.
        """
        path = instead or self.network_path(precision)
        session = OnnxSession(path, **options)
        if session.output_keys != self.taxonomy.output_keys:
            raise BundleError(
                f"{path.name} names other outputs than {TAXA_FILE}",
                value=f"{len(session.output_keys)} outputs",
                limit=f"the {len(self.taxonomy.outputs)} of {TAXA_FILE} in the same order",
                remedy="export the bundle again",
            )
        return session


def seal_bundle(folder: Path, record: BundleRecord, taxonomy: Taxonomy, files: dict[str, Path]) -> Bundle:
    """Writes a bundle in one step: it is there whole and verified, or not at all.

    Args:
        folder: Where it shall stand; must not exist yet, since bundles are immutable.
        record: Its description; `files` is filled in here.
        taxonomy: Goes to `taxa.json`.
        files: Name inside the bundle -> file to copy there.

    Returns:
        The bundle as loaded back from disk.

    Raises:
        BundleError: The folder exists, a file name leads elsewhere, or what was written does not verify.
    """
    if folder.exists():
        raise BundleError(
            "a bundle is immutable and its folder exists already",
            value=folder,
            remedy="choose a new folder or delete the old bundle",
        )
    for name in files:
        _require_plain_name(name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        draft = Path(temporary) / "bundle"
        draft.mkdir()
        for name, path in files.items():
            shutil.copyfile(path, draft / name)
        (draft / TAXA_FILE).write_bytes(_pretty_json(taxonomy))
        hashes = {path.name: file_sha256(path) for path in sorted(draft.iterdir())}
        sealed = msgspec.structs.replace(record, files=hashes)
        (draft / BUNDLE_FILE).write_bytes(_pretty_json(sealed))
        load_bundle(draft)
        draft.rename(folder)
    return load_bundle(folder)


def load_bundle(folder: Path) -> Bundle:
    """Reads a bundle and verifies it: format, hash of every file, label hash and output count.

    Raises:
        BundleError: Something is missing, damaged or contradicts another part; the message says which and why.
    """
    record = _read_record(folder)
    _verify_files(folder, record)
    taxonomy = _read_json(folder / TAXA_FILE, Taxonomy)
    _require_equal("label hash", f"{BUNDLE_FILE}", record.label_hash, TAXA_FILE, taxonomy.label_hash)
    _require_equal("number of outputs", BUNDLE_FILE, record.architecture.num_outputs, TAXA_FILE, len(taxonomy.outputs))
    for part in sorted(set(record.parts) - KNOWN_PARTS):
        warnings.warn(f"bundle part {part!r} is not known to this version and is ignored", stacklevel=2)
    return Bundle(folder, record, taxonomy)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _require_plain_name(name: str) -> None:
    """Before anything is copied: a path would write outside the bundle, our own records would be overwritten."""
    if name in {BUNDLE_FILE, TAXA_FILE} or not re.fullmatch(FILE_NAME, name):
        raise BundleError(
            "a file cannot stand in a bundle under that name",
            value=repr(name),
            limit=f"letters, digits, dots, - and _, and neither {BUNDLE_FILE} nor {TAXA_FILE}",
            remedy="rename it",
        )


def _read_record(folder: Path) -> BundleRecord:
    path = folder / BUNDLE_FILE
    if not path.is_file():
        raise BundleError(
            "no bundle stands there",
            value=folder,
            limit=f"a folder with {BUNDLE_FILE}",
            remedy="name the folder that training/export.py wrote",
        )
    version = _format_version(path)
    if version != FORMAT_VERSION:
        raise BundleError(
            f"{path} is of another bundle format",
            value=version,
            limit=f"format {FORMAT_VERSION}",
            remedy="export the bundle again, or use the botanify that wrote it",
        )
    return _read_json(path, BundleRecord)


def _format_version(path: Path) -> object:
    """Read before anything else: a later format may have other fields."""
    try:
        return msgspec.json.decode(path.read_bytes())["format_version"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise BundleError(
            f"{path} is no bundle record",
            limit="a JSON object with format_version",
            remedy="fetch or export the bundle again",
        ) from error


def _verify_files(folder: Path, record: BundleRecord) -> None:
    needed = {TAXA_FILE, *(network.file for network in record.networks.values()), *record.parts.values()}
    for name in sorted(needed | set(record.files)):
        if name not in record.files:
            raise BundleError(f"{BUNDLE_FILE} gives no hash for {name}", remedy="export the bundle again")
        if not (folder / name).is_file():
            raise BundleError(f"{name} is missing from the bundle", value=folder, remedy="fetch the bundle again")
        _require_equal(f"SHA-256 of {name}", BUNDLE_FILE, record.files[name], "the file", file_sha256(folder / name))
    if not record.networks:
        raise BundleError("the bundle holds no network", value=folder, remedy="export it again")
    for precision in record.networks.keys() & record.left_out.keys():
        raise BundleError("a precision is both released and left out", value=precision, remedy="export it again")


def _require_equal(what: str, first: str, first_value: object, second: str, second_value: object) -> None:
    if first_value != second_value:
        raise BundleError(
            f"the {what} differs between {first} and {second}",
            value=second_value,
            limit=str(first_value),
            remedy="the bundle was changed after it was sealed; fetch or export it again",
        )


def _read_json(path: Path, kind: type[_Record]) -> _Record:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, BotanifyError) as error:
        raise BundleError(f"{path} cannot be read", value=error, remedy="fetch or export the bundle again") from error


def _pretty_json(record: msgspec.Struct) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
