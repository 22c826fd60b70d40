"""What is there to identify now."""

from collections.abc import Mapping, Sequence

import msgspec

from serving.folder.command import IdentifyFolder
from serving.folder.lists import read_list
from serving.folder.photographs import Photograph, Store, printable, with_content_hash
from serving.folder.plants import Plant, group_photographs
from serving.folder.truth import require_truths


class Listing(msgspec.Struct, frozen=True):
    """All plants, and how to notice without listing that there may be others."""

    plants: Sequence[Plant]
    listed: str
    """See `what_is_listed`."""
    snapshot: Mapping[str, int] | None
    """See `Store.snapshot`."""


def list_plants(command: IdentifyFolder, store: Store) -> Listing:
    """Lists the photographs and groups them into plants.

    Raises:
        InputError: The folder, the list, its columns or the grouping cannot be used.
    """
    listed = what_is_listed(command)  # before the list is read
    plants = group_photographs(_find(command, store), command.group_by)
    if command.truth is not None:
        require_truths(plants, command.truth)
    return Listing(plants, listed, store.snapshot())


def what_is_listed(command: IdentifyFolder) -> str:
    """Describes what is listed, so that other flags or another list are noticed."""
    if command.list is None:
        return "recursive" if command.recursive else "not recursive"
    return f"{printable(str(command.list))} of {command.list.stat().st_mtime_ns if command.list.exists() else 0}"


def _find(command: IdentifyFolder, store: Store) -> Sequence[Photograph]:
    found = store.find(recursive=command.recursive) if command.list is None else read_list(command.list, store)
    return [with_content_hash(each, store) for each in found] if command.by_hash else list(found)
