"""Sphinx's configuration. docs/generate.py writes the pages in docs/generated from the code before each build.

The page of the programs stays as it is committed where PyTorch is not installed.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sphinx.application import Sphinx  # noqa: E402

from docs.generate import write_pages  # noqa: E402

project = "botanify"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["conf.py", "generate.py"]

myst_heading_anchors = 3
# The pages in benchmarks/ are for readers of the repository; here links to them become plain words. A test checks that
# every link of every page leads to a file and a heading.
suppress_warnings = ["myst.xref_missing"]

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"botanify {release}"
html_copy_source = False
# Nothing is loaded from other machines: Furo brings its own styles and scripts, and its fonts are the system's.
html_theme_options = {"top_of_page_buttons": []}


def setup(app: Sphinx) -> None:
    """Writes the generated pages before Sphinx looks for sources."""
    app.connect("config-inited", lambda _app, _config: write_pages(ROOT / "docs" / "generated", keep=True))
