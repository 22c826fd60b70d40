"""API keys: random secrets, stored as SHA-256 hashes. `python -m serving.access.keys NAME` creates one.

A fast hash is safe here, unlike for passwords: a key holds 256 random bits, which cannot be guessed. A slow hash would
let attackers keep the service busy.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import tyro

from models.errors import InputError
from models.program import run_program
from models.text_table import text_lines

_PREFIX: Final = "botanify_"  # lets secret scanners find keys in published source code
_NUM_RANDOM_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LINE: Final = re.compile(rf"({_NAME.pattern})\s+([0-9A-Fa-f]{{64}})(\s+admin)?(?:\s+([1-9][0-9]{{0,8}})/day)?")
_SECRET: Final = re.compile(r"[\x21-\x7e]{32,256}")  # shorter ones may be passwords, which a fast hash does not protect
_LINE_FORM: Final = "NAME SHA256HEX [admin] [NUMBER/day]"
_CREATE_ONE: Final = "create a line with `python -m serving.access.keys NAME`"


class ApiKey(msgspec.Struct, frozen=True, gc=False):
    """One stored key."""

    name: str
    """Identifies its holder in the log."""
    sha256: str
    """Hash of the secret, lower-case hexadecimal."""
    is_admin: bool = False
    per_day: int = 0
    """How many plants it may ask about a day; 0 for any number."""

    @property
    def line(self) -> str:
        """The line to store, without the identifications a day, which the operator adds."""
        return f"{self.name} {self.sha256}" + (" admin" if self.is_admin else "")


class ApiKeys:
    """The API keys that the service accepts; without any, every request is refused."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._by_hash = {key.sha256: key for key in keys}
        self.has_admin = any(key.is_admin for key in keys)
        self.per_day = {key.name: key.per_day for key in keys}

    def find(self, secret: str) -> ApiKey | None:
        """Returns the key of a secret, or None.

        The time of a response may tell something of a stored hash, from which nobody finds the secret. To compare all
        hashes would take each request 0.2 s with a million keys.
        """
        return self._by_hash.get(_hash(secret)) if _SECRET.fullmatch(secret) else None


def read_keys(text: str = "", file: Path | None = None) -> ApiKeys | None:
    """Reads API keys, one per line: `NAME SHA256HEX`.

    After it may come `admin` for a key that may make admin calls, and a number of identifications a day such as
    `500/day`. Empty lines and lines that start with # are skipped. Error messages give the line number but never the
    content, because someone may have stored the secret in place of its hash. In `text` commas also separate keys,
    because an environment variable usually has only one line.

    Returns:
        The keys, or None if neither was given: the service is then open to everybody. A file without keys gives none
        that is valid, so that taking out the last one revokes it.

    Raises:
        InputError: The file cannot be read, a line is malformed, a name or hash appears twice, or the text has no key.
    """
    sources: list[tuple[str, Iterable[str]]] = (
        [("--api-keys", text.replace(",", "\n").split("\n"))] if text.strip() else []
    )
    if file is not None:
        sources.append((f"{file}", text_lines(file, "\n")))
    if not sources:
        return None
    keys = _parse(sources)
    if not keys and file is None:
        raise InputError(f"{sources[-1][0]} contains no API key", limit=f"lines {_LINE_FORM}", remedy=_CREATE_ONE)
    return ApiKeys(keys)


def make_key(name: str, *, is_admin: bool = False) -> tuple[str, ApiKey]:
    """Returns a new secret, to be shown once, and the key to store.

    Raises:
        InputError: The name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            "the name of the key is not valid",
            value=repr(name[:80]),
            limit="1 to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit",
            remedy="choose another name",
        )
    secret = _PREFIX + secrets.token_urlsafe(_NUM_RANDOM_BYTES)
    return secret, ApiKey(name, _hash(secret), is_admin)


class MakeKey(msgspec.Struct, frozen=True):
    """Creates an API key and prints it with the line to store."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the holder in the log: letters, digits, dots, dashes, underscores."""
    admin: tyro.conf.FlagCreatePairsOff[bool] = False
    """Allow admin calls too, such as a reload of the bundle."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a new key and the line to store; exits 1 with one line if the name is not valid."""
    run_program(MakeKey, _print_key, arguments, prog="python -m serving.access.keys")


def _print_key(command: MakeKey) -> None:
    secret, key = make_key(command.name, is_admin=command.admin)
    print(f"The key. It is shown only once; give it to its user:\n\n  {secret}\n")
    print(f"As a link, the address of the page and:\n\n  #key={secret}\n")
    print(f"The line to add to the file of --api-keys-file, or to BOTANIFY_API_KEYS:\n\n  {key.line}")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _parse(sources: Iterable[tuple[str, Iterable[str]]]) -> list[ApiKey]:
    """Parses the lines of each source, and requires that names and hashes are distinct."""
    keys: list[ApiKey] = []
    seen: dict[str, str] = {}
    for source, lines in sources:
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            place = f"line {number} of {source}"
            match = _LINE.fullmatch(line.strip())
            if match is None:
                raise InputError(f"{place} is not a valid API key", limit=_LINE_FORM, remedy=_CREATE_ONE)
            key = ApiKey(match[1], match[2].lower(), match[3] is not None, int(match[4] or 0))
            for field, value in (("name", key.name), ("key", key.sha256)):
                if (first := seen.setdefault(f"{field} {value}", place)) != place:
                    raise InputError(f"{place} has the same {field} as {first}", remedy="remove one of the two")
            keys.append(key)
    return keys


if __name__ == "__main__":
    main()
