"""Public names keep to the glossary of docs/architecture.md."""

import ast
import re

from tests.docs.pages import DOCS, ROOT, text_of

ROWS = re.findall(
    r"^\| ([^|`]+) \| ([^|]+) \|(.*)\|$", text_of(DOCS / "architecture.md").partition("## Glossary")[2], re.MULTILINE
)[1:]
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public_names():
    for package in ("models", "serving", "training"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, path.stem
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, DEFINITIONS) and not node.name.startswith("_"):
                    yield path, node.name


def words_of(name):
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def test_the_glossary_has_at_most_forty_rows():
    assert 20 < len(ROWS) <= 40


def test_no_public_name_contains_a_word_that_the_glossary_does_not_use():
    refused = {word for _, _, words in ROWS for word in re.findall(r"\w+", words)}
    names = list(public_names())
    assert len(names) > 1000
    assert [(str(path.relative_to(ROOT)), name) for path, name in names if words_of(name) & refused] == []
