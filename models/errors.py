"""The exceptions of botanify, shared by training and serving.

Every class has a `code` for the HTTP contract and the logs. Messages may be reworded; codes never change.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

# After the scheme up to the last @ before a slash. SQLAlchemy reads passwords with a slash, too; a port is none;
# fsspec writes a third slash.
_USER_AND_PASSWORD: Final = re.compile(r"(?<=://)(?:[^\s/]*|/?[^\s/:\[]*:(?!\d+/)[^\s@]*)@")


def without_password(text: str) -> str:
    """Returns a text in which each address, such as s3://user:password@bucket, has neither user nor password."""
    return _USER_AND_PASSWORD.sub("", text)


def one_line(text: object, most: int = 300) -> str:
    """Returns a text, such as an error of another library, in one line of at most so many characters."""
    return " ".join(str(text).split())[:most]


def some_of(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Returns the first texts, and how many others there are: "a, b and 9 more"."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


class BotanifyError(Exception):
    """Base of every error that botanify raises on purpose."""

    code = "error"


class InputError(BotanifyError):
    """An error that the user can fix. Its message is one sentence without passwords: problem, value, limit, remedy.

    Args:
        problem: What is wrong, as a clause without a period.
        value: What was given, if it helps to show it.
        limit: What is accepted.
        remedy: How to fix it, in the imperative.
    """

    code = "bad_input"

    def __init__(
        self, problem: str, *, value: object = None, limit: str | None = None, remedy: str | None = None
    ) -> None:
        self.problem = problem
        self.value = value
        self.limit = limit
        self.remedy = remedy
        super().__init__(problem)  # the problem alone: pickling passes it to __init__ again

    def __str__(self) -> str:
        facts = [f"got {self.value}"] if self.value is not None else []
        facts += [f"expected {self.limit}"] if self.limit else []
        detail = f" ({'; '.join(facts)})" if facts else ""
        remedy = f": {self.remedy}" if self.remedy else ""
        return without_password(f"{self.problem}{detail}{remedy}.")


class RecipeError(InputError):
    """A recipe file or a command-line flag that is invalid."""

    code = "bad_recipe"


class DataError(InputError):
    """A folder, table or manifest of pictures that cannot be used."""

    code = "bad_data"


class CheckpointError(InputError):
    """A checkpoint or weights file that is missing, damaged or does not fit the network."""

    code = "bad_checkpoint"


class BundleError(InputError):
    """A bundle that is missing, damaged, or whose parts contradict each other."""

    code = "bad_bundle"

    @classmethod
    def unreadable(cls, path: Path, error: Exception | str) -> "BundleError":
        """Returns the error for a file of a bundle that cannot be read."""
        return cls(f"{path} cannot be read", value=error, remedy="fetch or export the bundle again")


class PictureError(InputError):
    """The bytes of a picture that cannot become a network input."""

    code = "bad_picture"


class UnsupportedFormat(PictureError):
    """The bytes are not a picture in an accepted format (HTTP 415)."""

    code = "unsupported_format"


class UnreadableImage(PictureError):
    """The bytes start like an accepted format but do not decode (HTTP 422)."""

    code = "unreadable_image"

    @classmethod
    def damaged(cls, problem: str, value: str | None = None) -> "UnreadableImage":
        """Returns the error of a file that is damaged or not complete."""
        limit = "a complete, undamaged file"
        return cls(problem, value=value, limit=limit, remedy="send the original photograph again")


class TooManyPixels(PictureError):
    """The picture is larger than the limit of its format (HTTP 422)."""

    code = "too_many_pixels"
