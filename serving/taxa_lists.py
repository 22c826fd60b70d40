"""The choice of taxa in a request: names, and named lists of names that the operator keeps in a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.errors import InputError
from models.taxonomy import TaxaChoice, TaxonNames
from serving.errors import BadParameter

TaxaLists = Mapping[str, tuple[str, ...]]
"""Name of a list -> the names in it."""

LIST_PREFIX: Final = "list:"
"""Starts a value that names a list."""
_SUFFIX: Final = ".txt"
_COMMENT: Final = "#"
_NUM_NAMED: Final = 3  # names that a warning repeats; it counts the others
_NAME_LENGTH: Final = 40  # longest part of a name that a message repeats
_LIST_FORM: Final = "a folder with text files NAME.txt in UTF-8, one name a line"


def read_taxa_lists(folder: Path | None) -> TaxaLists:
    """Reads the lists of a folder: one file NAME.txt per list, one name per line; # starts a comment.

    Hidden files are left out.

    Args:
        folder: The folder; None for no lists.

    Raises:
        InputError: The folder or a file cannot be read, or a list is empty.
    """
    if folder is None:
        return {}
    if not folder.is_dir():
        raise InputError(
            "the folder of --taxa-lists does not exist", value=folder, limit=_LIST_FORM, remedy="correct the path"
        )
    paths = sorted(folder.glob(f"*{_SUFFIX}"))
    return {path.stem: _read(path) for path in paths if not path.name.startswith(".")}  # editors keep hidden files


def _read(path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the list {path} cannot be read", value=error, limit=_LIST_FORM, remedy="correct or remove the file"
        ) from error
    names = tuple(name for line in text.splitlines() if (name := line.partition(_COMMENT)[0].strip()))
    if not names:
        raise InputError(f"the list {path} has no names", limit=_LIST_FORM, remedy="add names or remove the file")
    return names


class AllowedTaxa(msgspec.Struct, frozen=True):
    """The taxa that can be the answer to a request."""

    allowed_T: npt.NDArray[np.bool_] | None
    """Whether each taxon can be the answer; None for all."""
    warnings: tuple[str, ...] = ()
    """A sentence about the names that were not understood."""


class TaxaSelector:
    """Understands the parameter `taxa`.

    Args:
        names: The names that the model knows.
        lists: The lists that requests can name; they are looked up once, here.
    """

    def __init__(self, names: TaxonNames, lists: TaxaLists) -> None:
        self._names = names
        taxonomy = names.taxonomy
        self._has_output_T = np.bincount(taxonomy.taxon_of_output, minlength=len(taxonomy.taxa)) > 0
        self.lists = {name: names.choose(content) for name, content in lists.items()}

    def select(self, values: Sequence[str]) -> AllowedTaxa:
        """Chooses the taxa that any of the values means.

        Args:
            values: Names of species, genera and families, synonyms, common names, and `list:NAME`; none means that all
                taxa are allowed.

        Raises:
            BadParameter: A list does not exist, or the model knows none of the names.
        """
        if not values:
            return AllowedTaxa(None)
        lists = [value.removeprefix(LIST_PREFIX) for value in values if value.startswith(LIST_PREFIX)]
        by_name = self._names.choose(value for value in values if not value.startswith(LIST_PREFIX))
        by_list = {name: self._find(name) for name in dict.fromkeys(lists)}
        allowed_T = np.any([by_name.chosen_T, *(choice.chosen_T for choice in by_list.values())], axis=0)
        allowed_T &= self._has_output_T  # without any output no probability would be left to share
        if not allowed_T.any():
            raise BadParameter(
                "the model knows none of the names in the parameter `taxa`",
                value=_in_words(values),
                limit="names of genera, families and species, synonyms, common names, or list:NAME",
                remedy="look for names that the model knows with /species?q=",
            )
        sentences = [_sentence("the parameter `taxa`", by_name.unknown)]
        sentences += [_sentence(f"the list {name!r}", choice.unknown) for name, choice in by_list.items()]
        return AllowedTaxa(allowed_T, tuple(filter(None, sentences)))

    def _find(self, name: str) -> TaxaChoice:
        found = self.lists.get(name)
        if found is None:
            raise BadParameter(
                "the parameter `taxa` names a list that does not exist",
                value=repr(name[:_NAME_LENGTH]),
                limit=", ".join(self.lists) or "no list, since this service has none",
                remedy="choose another list, or send names",
            )
        return found


def _sentence(where: str, unknown: Sequence[str]) -> str:
    if not unknown:
        return ""
    return f"Not known to this model and ignored, in {where}: {_in_words(unknown)}."


def _in_words(names: Sequence[str]) -> str:
    shown = [repr(name[:_NAME_LENGTH]) for name in names[:_NUM_NAMED]]
    others = len(names) - len(shown)
    return ", ".join(shown) + (f" and {others:,} more" if others else "")
