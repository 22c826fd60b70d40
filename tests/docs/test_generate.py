"""The generated pages hold everything that they are generated from."""

import re

import pytest

from docs.generate import (
    GENERATED,
    PAGES,
    PROGRAMS,
    fields,
    help_text,
    http_page,
    metrics_page,
    openapi_document,
    recipe_page,
    settings_page,
    write_pages,
)
from serving.settings import Settings
from training.dataset.collection import collection_files
from training.recipe import AugmentRecipe, Recipe, recipe_files


@pytest.mark.parametrize("name", GENERATED)
def test_committed_page_is_what_the_code_says(name):
    committed = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert committed == GENERATED[name](), "run: make tables"


def test_a_page_that_needs_pytorch_stays_where_it_is_not_installed_and_nothing_else_does(tmp_path, monkeypatch):
    pages = {"commands": lambda: help_text("python training/train.py", "torch_is_missing"), "metrics": lambda: "new"}
    monkeypatch.setattr("docs.generate.GENERATED", pages)
    for name in pages:
        (tmp_path / f"{name}.md").write_text("committed")
    write_pages(tmp_path, keep=True)
    assert [(tmp_path / f"{name}.md").read_text() for name in pages] == ["committed", "new"]
    with pytest.raises(ModuleNotFoundError):
        write_pages(tmp_path)  # make tables


def test_every_setting_has_flag_variable_and_meaning():
    page = settings_page()
    for name, _, meaning in fields(Settings):
        assert f"| `--{name.replace('_', '-')}` | `BOTANIFY_{name.upper()}` |" in page
        assert meaning
        assert " ".join(meaning.split()) in page
    assert [name for name, _, _ in fields(Settings)] == list(Settings.__struct_fields__)


def test_every_recipe_key_has_its_section_and_meaning():
    page = recipe_page()
    for section in Recipe.__struct_fields__[2:]:
        assert f"### `[{section}]`" in page
    for path in [*recipe_files(), *collection_files()]:
        assert re.search(rf"^\| `{path.stem}` \| \w.+\. \|$", page, re.MULTILINE), path
    for name, default, meaning in fields(AugmentRecipe):
        assert meaning
        assert f"| `{name}` | " in page
        assert default is not None


def test_metrics_page_lists_counters_by_the_names_that_queries_use():
    page = metrics_page()
    assert "| `botanify_requests_total` | counter | `route`, `method`, `status` |" in page
    assert "| `botanify_stage_seconds` | histogram | `stage` |" in page
    assert "_created" not in page


def test_http_page_describes_every_operation_and_record(monkeypatch):
    document = openapi_document()
    monkeypatch.setattr("docs.generate.openapi_document", lambda: document)
    page = http_page()
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"## `{method.upper()} {path}`" in page
    for name, schema in document["components"]["schemas"].items():
        assert f"### {name}\n" in page
        assert all(f"| `{field}` |" in page for field in schema.get("properties", {}))
    assert "| 503 | `overloaded` |" in page
    assert "| `position` | integer | Place in the ranking; 1 is the most probable. |" in page
    assert "| `licenses` | object | License of those pictures" in page


def test_help_of_a_program_is_what_it_prints():
    text = help_text("python -m serving", PROGRAMS["python -m serving"])
    assert text.startswith("usage: ")
    assert "--max-wait-s" in text
    assert "\x1b" not in text
