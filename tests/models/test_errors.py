"""Errors are one sentence with problem, value, limit and remedy, and keep their codes."""

import pickle

from models import errors
from models.errors import InputError, TooManyPixels, one_line
from tests.make import from_table

CODES = {
    "BotanifyError": "error",
    "InputError": "bad_input",
    "RecipeError": "bad_recipe",
    "DataError": "bad_data",
    "CheckpointError": "bad_checkpoint",
    "BundleError": "bad_bundle",
    "PictureError": "bad_picture",
    "UnsupportedFormat": "unsupported_format",
    "UnreadableImage": "unreadable_image",
    "TooManyPixels": "too_many_pixels",
}


def test_an_error_of_several_lines_becomes_one_short_one():
    assert one_line(ValueError("CUDA\n  failed: 2"), 13) == "CUDA failed: "


def test_codes_never_change():
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert {kind.__name__: kind.code for kind in classes} == CODES


@from_table
def test_message_has_problem_value_limit_and_remedy_as_far_as_they_are_given(facts, sentence):
    assert str(InputError("it is wrong", **facts)) == sentence


@from_table
def test_no_message_has_the_user_and_the_password_of_an_address(address, shown):
    assert str(InputError("it is away", value=address, limit=address)) == f"it is away (got {shown}; expected {shown})."


def test_error_from_another_process_has_the_same_message():
    error = TooManyPixels("too large", value="9 x 9", limit="at most 8", remedy="send less")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - what multiprocessing does, with our own bytes
    assert type(copy) is TooManyPixels
    assert str(copy) == str(error)
    assert (copy.problem, copy.value, copy.limit, copy.remedy) == (
        error.problem, error.value, error.limit, error.remedy,
    )  # fmt: skip
