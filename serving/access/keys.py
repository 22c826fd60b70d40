"""API keys: random secrets of which only the SHA-256 is stored. `python -m serving.access.keys NAME` makes one.

A plain hash is right here, though it would not be for passwords: a key holds 256 random bits, so nobody can try them
all, however fast the hash is; and a slow hash would hand attackers a way to keep the service busy.
"""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec
import tyro

from models.errors import InputError

_PREFIX: Final = "botanify_"  # lets scanners of source code find keys that were published by mistake
_NUM_RANDOM_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LINE: Final = re.compile(rf"({_NAME.pattern})\s+([0-9A-Fa-f]{{64}})(\s+admin)?")
_SECRET: Final = re.compile(r"[\x21-\x7e]{32,256}")  # shorter ones are passwords, which a plain hash does not protect
_LINE_FORM: Final = "NAME SHA256HEX [admin]"
_MAKE_ONE: Final = "make a line with `python -m serving.access.keys NAME`"


class Key(msgspec.Struct, frozen=True):
    """One stored key."""

    name: str
    """What logs call its holder."""
    sha256: str
    """Of the secret, lower-case hexadecimal."""
    is_admin: bool = False

    @property
    def line(self) -> str:
        """The line that stores it."""
        return f"{self.name} {self.sha256}" + (" admin" if self.is_admin else "")


class Keys:
    """The keys that open the service.

    Args:
        keys: At least one; no name and no hash twice.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)
        self.has_admin = any(key.is_admin for key in keys)

    def find(self, secret: str) -> Key | None:
        """The key that a secret belongs to, or nothing.

        Every stored hash is compared, and each in constant time, so the time tells nothing about any of them.
        """
        if not _SECRET.fullmatch(secret):
            return None
        digest = _hash(secret)
        found = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.sha256):
                found = key
        return found


def read_keys(text: str = "", file: Path | None = None) -> Keys | None:
    """Reads the keys: one a line, `NAME SHA256HEX` and `admin` where it opens the admin calls too.

    Empty lines and lines that begin with # are skipped. Messages name places, never what stands there: a key itself
    may have been put where its hash belongs.

    Args:
        text: Such lines; commas part them too, for places that hold one line only.
        file: A file of such lines; its keys are added.

    Returns:
        Nothing where neither was given, so everybody may ask.

    Raises:
        InputError: The file cannot be read, a line is malformed, a name or hash stands twice, or there is no key.
    """
    sources = [("the setting api_keys", text.replace(",", "\n"))] if text.strip() else []
    if file is not None:
        sources.append((f"{file}", _read(file)))
    if not sources:
        return None
    placed = [(f"line {number} of {name}", line) for name, lines in sources for number, line in _lines(lines)]
    if not placed:
        raise InputError(f"{sources[-1][0]} holds no API key", limit=f"lines {_LINE_FORM}", remedy=_MAKE_ONE)
    keys = [_parse(place, line) for place, line in placed]
    _require_distinct([place for place, _ in placed], keys)
    return Keys(keys)


def make_key(name: str, *, is_admin: bool = False) -> tuple[str, Key]:
    """Makes a new key.

    Returns:
        The secret, to be shown once, and what is stored of it.

    Raises:
        InputError: The name is not of the accepted form.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            "the name of the key is not accepted",
            value=repr(name[:80]),
            limit="up to 64 letters, digits, dots, dashes and underscores",
            remedy="choose another",
        )
    secret = _PREFIX + secrets.token_urlsafe(_NUM_RANDOM_BYTES)
    return secret, Key(name, _hash(secret), is_admin)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a new key and the line to store; exits 1 with one line where the name is not accepted.

    Args:
        arguments: Command line without the program's name; by default this process's.
    """
    try:
        secret, key = tyro.cli(_make, args=arguments, prog="python -m serving.access.keys")
    except InputError as error:
        sys.exit(f"botanify: {error}")
    print(f"The key, shown this once. Give it to whoever shall use it:\n\n  {secret}\n")
    print(f"The line to add to the file of --api-keys-file, or to BOTANIFY_API_KEYS:\n\n  {key.line}")


def _make(
    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME")]],
    *,
    admin: tyro.conf.FlagCreatePairsOff[bool] = False,
) -> tuple[str, Key]:
    """Makes a new API key and prints it with the line to store.

    Args:
        name: What the logs call its holder: letters, digits, dots, dashes, underscores.
        admin: The key opens the admin calls too, such as a reload of the bundle.
    """
    return make_key(name, is_admin=admin)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"the file of API keys {file} cannot be read", value=error.strerror, remedy="correct --api-keys-file"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"the file of API keys {file} is no text", limit="UTF-8", remedy=_MAKE_ONE) from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line


def _parse(place: str, line: str) -> Key:
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise InputError(f"{place} is no API key", limit=_LINE_FORM, remedy=_MAKE_ONE)
    return Key(found[1], found[2].lower(), is_admin=found[3] is not None)


def _require_distinct(places: Sequence[str], keys: Sequence[Key]) -> None:
    first: dict[tuple[str, str], str] = {}
    for place, key in zip(places, keys, strict=True):
        for fact in (("name", key.name), ("key", key.sha256)):
            if fact in first:
                raise InputError(f"{place} has the same {fact[0]} as {first[fact]}", remedy="remove one of the two")
            first[fact] = place


if __name__ == "__main__":
    main()
