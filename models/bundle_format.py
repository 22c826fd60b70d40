"""Reads the JSON files of a bundle of format 2 or 1.

`models/bundle_record.py` says when the format version is raised.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from models.bundle_record import BundleRecord
from models.errors import BotanifyError, BundleError

FORMAT_VERSION: Final = 2
_FORMAT_1_KEYS: Final = {"gates": "checks", "licences": "licenses"}
_FORMAT_1_LACKS: Final = (
    "The bundle has format 1, which does not say with which manifest and commit its network was trained. Its figures "
    "may come from pictures that it was trained on.",
    "The bundle has format 1, which has no calibration tables. The service cannot tell plants from other things, "
    "makes no promise, and gives no candidate set.",
)

_Record = TypeVar("_Record", bound=msgspec.Struct)


def read_record(path: Path) -> tuple[BundleRecord, tuple[str, ...]]:
    """Reads `bundle.json`.

    Returns:
        The record, and a sentence for each thing that is ignored in it or that its format lacks.

    Raises:
        BundleError: The file has a format that this version cannot read, or is damaged.
    """
    content = _read_content(path)
    version = content["format_version"]
    if version not in (1, FORMAT_VERSION):
        newer = isinstance(version, int) and version > FORMAT_VERSION
        raise BundleError(
            f"{path} has another bundle format",
            value=version,
            limit=f"format 1 or {FORMAT_VERSION}",
            remedy="update botanify, or export the bundle again" if newer else "export the bundle again",
        )
    if version == 1:
        content = _from_format_1(content)
    try:
        record = msgspec.convert(content, BundleRecord)
    except (msgspec.ValidationError, BotanifyError) as error:
        raise BundleError.unreadable(path, error) from error
    fields = dict.fromkeys(_unknown_fields(content, record))
    ignored = tuple(f"This version does not know the field {field} of {path.name} and ignores it." for field in fields)
    return record, (*(_FORMAT_1_LACKS if version == 1 else ()), *ignored)


def read_json(path: Path, kind: type[_Record]) -> _Record:
    """Reads another JSON file of a bundle.

    Raises:
        BundleError: The file cannot be read or is damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, BotanifyError) as error:
        raise BundleError.unreadable(path, error) from error


def _read_content(path: Path) -> dict[str, Any]:
    """Returns the content with its format version, which is read first: another format may have other fields."""
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        content["format_version"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise BundleError(
            f"{path} is not a bundle record",
            limit="a JSON object with format_version",
            remedy="fetch or export the bundle again",
        ) from error
    return content


def _from_format_1(content: dict[str, Any]) -> dict[str, Any]:
    """Gives the keys of format 1 their names of format 2, except in the recipe, whose keys are not the bundle's."""
    return {key: value if key == "recipe" else _renamed(value) for key, value in content.items()}


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {_FORMAT_1_KEYS.get(key, key): _renamed(each) for key, each in value.items()}
    return [_renamed(each) for each in value] if isinstance(value, list) else value


def _unknown_fields(content: Any, record: Any, place: str = "") -> Iterator[str]:
    """Yields the place of each field of the content that its record does not have, such as "sources[].url"."""
    if isinstance(record, msgspec.Struct):
        for key, value in content.items():
            if key in record.__struct_fields__:
                yield from _unknown_fields(value, getattr(record, key), f"{place}.{key}".lstrip("."))
            else:
                yield f"{place}.{key}".lstrip(".")
    elif isinstance(record, dict):
        for key, value in record.items():
            yield from _unknown_fields(content[key], value, f"{place}.{key}")
    elif isinstance(record, tuple):
        for given, value in zip(content, record, strict=True):
            yield from _unknown_fields(given, value, f"{place}[]")
