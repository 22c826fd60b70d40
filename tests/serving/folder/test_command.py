"""Flags that make no sense together are refused, not ignored."""

from pathlib import Path

import pytest

from models.errors import InputError
from serving.folder.command import IdentifyFolder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"links": True}, "need --copy-to"),
        ({"by": "genus"}, "need --copy-to"),
        ({"photographs": "s3://garden", "links": True, "copy_to": Path("sorted")}, "a folder of this machine"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(flags, words):
    with pytest.raises(InputError, match=words):
        IdentifyFolder(out="out", **flags)
