"""Every command of the pages is accepted by the program that it starts; what needs no download runs elsewhere too."""

import re
import shlex

import pytest

from tests.docs.pages import PAGES, ROOT, shell_blocks
from tests.make import require_accepted

PROGRAM = re.compile(r"(?:[A-Z_]+=\S+ )*(?:torchrun .* -- |python )(?P<start>-m [\w.]+|[\w/]+\.py)(?P<arguments>.*)")
LINES = sorted({(page.name, line) for page in PAGES for block in shell_blocks(page) for line in block})
COMMANDS = [line for line in LINES if PROGRAM.match(line[1])]
pytestmark = pytest.mark.timeout(300)  # the first test that starts export.py imports torch's compiler


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=lambda text: text[:60])
def test_program_accepts_the_command(page, line):
    found = PROGRAM.match(line)
    start = found["start"].removeprefix("-m ")
    if start in ("pytest", "venv", "unittest"):
        assert all((ROOT / path).exists() for path in re.findall(r"tests/[\w/.]+", line))
        return
    bundle = f" {ROOT}/models/releases/garden_and_wild_plants"  # train.py reads the recipe of one
    require_accepted(start, *shlex.split(found["arguments"].replace(" bundles/mine", bundle)))


def test_every_other_command_is_known():
    starts = {line.partition(" ")[0] for _, line in LINES if not PROGRAM.match(line)}
    assert starts <= {
        "make",
        "curl",
        "docker",
        "sbatch",
        "kill",
        "for",
        ".",
        "python3",
        ".venv/bin/pip",
        ".venv/bin/python",
    }


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for page in PAGES
        for name in re.findall(
            r"`?\bmake ([a-z-]+)(?=[` \n])[^\n]*", "\n".join(line for block in shell_blocks(page) for line in block)
        )
    }
    assert named
    assert named <= targets
