"""The documentation builds without a warning, and the built pages load nothing from other machines."""

import re
import sys

import pytest

from tests.docs.pages import DOCS
from tests.make import ran

pytest.importorskip("sphinx", reason="the extra `docs` is not installed; `make docs` installs it")
pytest.importorskip("furo", reason="the extra `docs` is not installed; `make docs` installs it")

LOADED = re.compile(r"""(?:<(?:script|img|iframe)[^>]* src|<link[^>]* href)=["'](https?:)?//""")
LOADED_BY_STYLES = re.compile(r"""(?:@import|url\()\s*["']?(?:https?:)?//""")


@pytest.mark.slow
def test_pages_build_without_a_warning_and_load_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--builder", "html"]
    done = ran(*command, DOCS, tmp_path)
    assert done.returncode == 0, done.stderr
    pages, styles = sorted(tmp_path.rglob("*.html")), sorted(tmp_path.rglob("*.css"))
    assert len(pages) > 15
    assert styles
    assert [page.name for page in pages if LOADED.search(page.read_text(encoding="utf-8"))] == []
    assert [style.name for style in styles if LOADED_BY_STYLES.search(style.read_text(encoding="utf-8"))] == []
