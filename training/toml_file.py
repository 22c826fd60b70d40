"""Reads TOML files into typed records; the error for an unknown key, a wrong type or a bad value names its path."""

import tomllib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final, TypeVar

import msgspec

from models.errors import RecipeError

RECIPES: Final = Path(__file__).parent / "recipes"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all records that are read from TOML: frozen, and an unknown key is an error."""


AnySection = TypeVar("AnySection", bound=Section)


def read_toml(path: Path, known: Sequence[Path], what: str = "recipe") -> tuple[dict[str, Any], str]:
    """The content of a TOML file, and the path of the file that was read.

    A bare name such as "debug" also finds the known file `debug.toml`. Errors call the file `what`.

    Raises:
        RecipeError: The file is missing or not valid TOML.
    """
    bare = path.name == str(path)  # a mistyped path must not find a recipe of the same name
    of_name = [file for file in known if bare and file.stem == path.name.removesuffix(".toml")]
    found = path if path.is_file() or not of_name else of_name[0]
    if not found.is_file():
        names = ", ".join(file.stem for file in known)
        raise RecipeError(
            f"no such {what}", value=path, limit=f"a TOML file or one of {names}", remedy="correct the name"
        )
    try:
        return tomllib.loads(found.read_text(encoding="utf-8")), str(found)
    except (ValueError, RecursionError) as error:  # also for an integer of thousands of digits, for as many brackets
        raise RecipeError(f"{found} is not valid TOML", value=error, remedy="correct the file") from error


def check_section(content: object, kind: type[AnySection], origin: str, what: str = "recipe") -> AnySection:
    """Converts plain values, as read from TOML or JSON, to a typed record, and checks them.

    Raises:
        RecipeError: An unknown key, a wrong type or a value out of range; the message gives its path.
    """
    try:
        return msgspec.convert(content, kind, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise RecipeError(
            f"the {what} {origin} cannot be used", value=error, remedy="correct the key or value; --help lists them"
        ) from error


def section_to_plain(section: Section) -> dict[str, Any]:
    """The record as plain values that TOML, JSON and `torch.save` can hold."""
    plain: dict[str, Any] = msgspec.to_builtins(section, enc_hook=str)
    return plain


def flag_words(setting: str, value: object) -> list[str]:
    """Returns the words of a command line that give a flag this value."""
    flag = setting.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]


def without_folders(text: str) -> str:
    """Cuts an absolute path to its last part, so that no folders of a machine are published; keeps other texts."""
    # The path may be from another operating system.
    paths = (PurePosixPath(text), PureWindowsPath(text))
    return next((path.name for path in paths if path.is_absolute()), text)


def _decode(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"cannot read a {kind.__name__} from {value!r}")
