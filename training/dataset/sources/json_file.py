"""JSON files of public data sets, decoded into typed records; errors name the file and the entry.

Unknown fields are ignored. Long lists are kept as undecoded entries (`msgspec.Raw`, views into the file's bytes) and
decoded one at a time, so that a million decoded entries are never in memory at once.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from models.errors import DataError

Kind = TypeVar("Kind")
Key = TypeVar("Key")


def read_json(path: Path, kind: type[Kind]) -> Kind:
    """Reads a JSON file.

    Args:
        path: The JSON file.
        kind: Type of its content.

    Raises:
        DataError: The file is missing, truncated or not JSON, or lacks a field.
    """
    if not path.is_file():
        raise DataError("a file of the data set is missing", value=path, remedy="download it, or correct the folder")
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.ValidationError as error:
        raise _unfit(f"{path}", error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is truncated or not JSON", value=error, remedy="download or copy it again") from error


def decode_entries(
    place: str, entries: Iterable[tuple[Key, msgspec.Raw]], kind: type[Kind]
) -> Iterator[tuple[Key, Kind]]:
    """Decodes the entries of a list or object, one at a time.

    Args:
        place: File and list, for the error.
        entries: Position or key, and the entry.
        kind: Type of each entry.

    Raises:
        DataError: An entry is damaged or lacks a field.
    """
    decode = msgspec.json.Decoder(kind).decode
    for key, entry in entries:
        try:
            yield key, decode(entry)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _unfit(f"{place}[{key}]", error) from error


def _unfit(place: str, error: Exception) -> DataError:
    return DataError(f"{place} cannot be read: {error}", remedy="correct the entry, or download the file again")
