"""The pages agree with one another and with the repository: links, lists, names of settings and metrics."""

import re
import shlex

import pytest

from serving.api.problems import codes_by_status
from serving.metrics import Metrics
from serving.settings import ENVIRONMENT_PREFIX, Settings
from tests.docs.pages import DOCS, GENERATED_PAGES, PAGES, ROOT, text_of
from tests.make import ran

CHANGES = text_of(ROOT / "CONTRIBUTING.md").partition("## Typical changes")[2].partition("\n## ")[0]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page):
    """The anchors that GitHub and MyST give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page):
    for name, _, anchor in (link.partition("#") for link in LINK.findall(text_of(page)) if "://" not in link):
        target = (page.parent / name).resolve() if name else page
        if target not in GENERATED_PAGES:
            assert target.exists(), target
            assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


def test_every_page_is_in_the_table_of_contents():
    listed = set(re.findall(r"^([\w/-]+)$", text_of(DOCS / "index.md"), re.MULTILINE))
    on_disk = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert listed == on_disk | {f"generated/{path.stem}" for path in GENERATED_PAGES}


def test_metrics_that_a_page_names_exist():
    exported = Metrics().text().decode()
    families = set(re.findall(r"^# HELP (\w+) ", exported, re.MULTILINE))
    named = set(re.findall(r"\b(?:botanify|process)_\w+", text_of(DOCS / "operate.md")))
    suffixes = ("", "_bucket", "_sum", "_count")
    assert named
    assert [name for name in named if not {name.removesuffix(end) for end in suffixes} & families] == []


def test_settings_that_a_page_names_exist():
    known = set(Settings.__struct_fields__)
    page = text_of(DOCS / "operate.md")
    section = page.partition("## Overload")[2].partition("## Reload")[0]
    flags = set(re.findall(r"`--([a-z-]+)", section))
    variables = set(re.findall(rf"{ENVIRONMENT_PREFIX}([A-Z_]+)", page))
    assert len(flags) > 8
    assert {flag.replace("-", "_") for flag in flags} <= known
    assert {variable.lower() for variable in variables} <= known


def test_problem_codes_and_statuses_that_a_page_names_exist():
    known = {code for codes in codes_by_status().values() for code in codes}
    named = set(re.findall(r"\| \d{3} `(\w+)` \|", text_of(DOCS / "operate.md")))
    assert named
    assert named <= known
    statuses = re.findall(r"^\| ([\d, ]+) \|", text_of(DOCS / "identify.md"), re.MULTILINE)
    listed = {int(status) for row in statuses for status in row.split(",")}
    assert listed <= set(codes_by_status())
    assert set(codes_by_status()) - listed == {405, 409, 507}  # a program, an operator, corrections


@pytest.mark.parametrize("row", re.findall(r"^\| an? .*\||^\| the .*\|", CHANGES, re.MULTILINE))
def test_the_command_of_a_typical_change_reaches_the_file_to_start_in(row):
    start, command = re.findall(r"`([^`]+)`", row)
    found = ran(*shlex.split(command), check=True).stdout
    files = {line.partition(":")[0] for line in found.splitlines()}
    assert [file for file in files if file.startswith(start)], f"{command} does not find {start}"
    assert any(file.startswith("tests/") for file in files)
    assert len(files) <= 20  # a newcomer looks at all of them


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_project_that_a_page_names_exist(page):
    if page.stem == "changelog":
        return  # they name what is gone
    named = re.findall(r"(?<![\w./])((?:tests|training|serving|models|benchmarks|deploy)/[\w./-]*\w)", text_of(page))
    named = [name for name in named if "DEVICE" not in name]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_pages_load_nothing_from_other_machines():
    for page in PAGES:
        assert not re.search(r"!\[[^]]*\]\(https?:|<(?:script|img|link)\b", text_of(page)), page.name
