"""One tree of errors, shared by training and serving.

    BotanifyError                    anything this project raises on purpose
    └── InputError                   the user can mend it: problem, value, limit, remedy
        ├── RecipeError              a recipe or flag (training)
        ├── DataError                a folder, table or manifest of pictures
        ├── CheckpointError          a checkpoint or weights file
        ├── BundleError              a released bundle that cannot be trusted
        └── PictureError             the bytes of one picture
            ├── UnsupportedFormat    unknown bytes, or a format that is not accepted
            ├── UnreadableImage      an accepted format that does not decode
            └── TooManyPixels        decodes, but is larger than its format's limit

Every class has a stable `code` that the HTTP contract and the logs use; messages may be reworded, codes never.
"""

from typing import ClassVar


class BotanifyError(Exception):
    """Base of every error that botanify raises on purpose."""

    code: ClassVar[str] = "error"


class InputError(BotanifyError):
    """A mistake that the user can mend, told in one sentence: problem, value, limit, remedy.

    Args:
        problem: What is wrong, as a clause without a final stop.
        value: What was given, if showing it helps.
        limit: What would have been accepted.
        remedy: What to do about it, in the imperative.
    """

    code: ClassVar[str] = "bad_input"

    def __init__(
        self, problem: str, *, value: object = None, limit: str | None = None, remedy: str | None = None
    ) -> None:
        self.problem, self.value, self.limit, self.remedy = problem, value, limit, remedy
        super().__init__(problem)  # alone, so that an error from another process is put together only once

    def __str__(self) -> str:
        facts = [f"got {self.value}"] if self.value is not None else []
        facts += [f"expected {self.limit}"] if self.limit else []
        detail = f" ({'; '.join(facts)})" if facts else ""
        return f"{self.problem}{detail}: {self.remedy}." if self.remedy else f"{self.problem}{detail}."


class RecipeError(InputError):
    """A recipe file or flag that cannot be followed."""

    code = "bad_recipe"


class DataError(InputError):
    """A folder, table or manifest of pictures that cannot be used."""

    code = "bad_data"


class CheckpointError(InputError):
    """A checkpoint or weights file that is missing, damaged or of another network."""

    code = "bad_checkpoint"


class BundleError(InputError):
    """A bundle that is missing, damaged, or whose parts contradict one another."""

    code = "bad_bundle"


class PictureError(InputError):
    """The bytes of one picture cannot become a network input."""

    code = "bad_picture"


class UnsupportedFormat(PictureError):
    """The bytes are no picture format that is accepted (HTTP 415)."""

    code = "unsupported_format"


class UnreadableImage(PictureError):
    """The bytes claim an accepted format but do not decode (HTTP 422)."""

    code = "unreadable_image"


class TooManyPixels(PictureError):
    """The picture is larger than the limit of its format (HTTP 422)."""

    code = "too_many_pixels"
