"""The memory of a decoder is measured against what was granted."""

import sys

import msgspec
import pytest

from benchmarks.serving.decoder_memory import DecoderMemory, Files, measure
from tests.models.hostile import jpeg_with_comments, long_png


@pytest.mark.skipif(sys.platform != "linux", reason="resets the peak of memory in /proc")
def test_files_are_measured_against_their_grants(tmp_path, capsys):
    folder, out = tmp_path / "files", tmp_path / "decoder_memory.json"
    folder.mkdir()
    (folder / "comments.jpg").write_bytes(jpeg_with_comments(500_000))
    (folder / "long.png").write_bytes(long_png(100, 60_000))
    measure(Files(files=folder, out=out))
    comments, long = msgspec.json.decode(out.read_bytes(), type=DecoderMemory).files
    assert (comments.outcome, long.outcome) == ("unreadable_image", "decoded")
    for found in (comments, long):
        assert 0 < found.peak_mb < found.granted_mb + 32
    assert "| long.png |" in capsys.readouterr().out
