"""The command in the model card is one that runs, without folders of the machine."""

import shlex
from pathlib import Path

import pytest
import tyro
from hypothesis import given, settings
from hypothesis import strategies as st

from training.bundling.commands import command_line, commands_section, without_folders
from training.commands.export import Export, GivenThresholds

NAMES = st.text("abc_ '\".-", min_size=1, max_size=8).filter(lambda name: name.strip(".-") and name[0] != "-")
PATHS = NAMES.map(Path)
SHARES = st.none() | st.floats(0, 1)


@settings(max_examples=40, deadline=None)
@given(
    flags=st.builds(
        Export,
        checkpoint=PATHS,
        data=PATHS,
        out=PATHS,
        name=NAMES,
        precision=st.sampled_from([("fp32",), ("fp32", "int8"), ("fp32", "fp16", "int8")]),
        judge_on=st.none() | PATHS,
        other_data=st.booleans(),
        half_storage=st.booleans(),
        serve_px=st.none() | st.integers(32, 512),
        negatives=st.lists(PATHS, max_size=2).map(tuple),
        thresholds=st.builds(GivenThresholds, species=SHARES, genus=SHARES, family=SHARES),
        workers=st.integers(0, 4),
    )
)
def test_the_command_gives_the_same_flags(flags):
    program, *words = shlex.split(command_line("training/export.py", flags))[1:]
    assert program == "training/export.py"
    assert tyro.cli(Export, args=words) == flags


def test_the_section_names_no_folder_of_the_machine(tmp_path):
    flags = Export(
        checkpoint=tmp_path / "run" / "best.pt",
        data=tmp_path / "flowers",
        out=tmp_path / "out" / "bundle",
        shards=str(tmp_path / "shards"),
        negatives=(tmp_path / "things", Path("other/things")),
    )
    section = commands_section(flags, flags.data, flags.out, other_data=True)
    expected = (
        "export.py --checkpoint best.pt --data flowers --shards shards --out bundle --negatives things other/things"
    )
    assert expected in section
    assert "evaluate.py --data flowers --bundle bundle --other-data\n" in section
    assert not [part for part in tmp_path.parts[1:] if part in section]


@pytest.mark.parametrize(
    ("given_text", "kept"),
    [
        ("/data/first/last.pt", "last.pt"),
        (r"D:\first\last.pt", "last.pt"),
        ("data/5337", "data/5337"),
        ("s3://bucket/shards", "s3://bucket/shards"),
        ("imagenet", "imagenet"),
        ("", ""),
    ],
)
def test_absolute_paths_of_any_system_are_cut_and_other_words_kept(given_text, kept):
    assert without_folders(given_text) == kept
