"""The pages of README, CONTRIBUTING and docs/, as tests read them."""

import re
from pathlib import Path

from docs.generate import GENERATED
from tests.make import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
GENERATED_PAGES = {DOCS / "generated" / f"{name}.md" for name in GENERATED}


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def shell_blocks(page: Path) -> list[list[str]]:
    """The commands of each block of shell, without what follows a #."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)
    joined = [block.replace("\\\n", " ") for block in blocks]
    return [[line.partition(" #")[0].strip() for line in block.splitlines() if line.strip()] for block in joined]
