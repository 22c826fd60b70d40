"""Program: writes the pages of the documentation that come from the code.

python docs/generate.py

`make tables` and `make docs` run it. The pages are committed, for whoever reads them in the repository; a test compares
them with the code.
"""

import ast
import contextlib
import importlib
import inspect
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

PAGES: Final = Path(__file__).resolve().parent / "generated"
PROGRAMS: Final = {
    "python training/prepare.py": "training.prepare",
    "python training/train.py": "training.train",
    "python training/evaluate.py": "training.evaluate",
    "python training/export.py": "training.export",
    "python training/release.py": "training.release",
    "python training/flora.py": "training.flora",
    "python -m serving": "serving.__main__",
    "python -m serving.identify_folder": "serving.identify_folder",
    "python -m serving.access.keys": "serving.access.keys",
}
"""How each program is started -> the module whose `main` it runs."""
_WIDTH: Final = "110"
_SUBCOMMANDS: Final = re.compile(r"\{([a-z][\w,-]+)\}\s*$", re.MULTILINE)


def write_pages(folder: Path, *, keep: bool = False) -> list[Path]:
    """Writes every generated page and returns their paths.

    Args:
        folder: Where they go.
        keep: Leaves a page as it is whose programs need a package that is not installed, such as PyTorch.
    """
    folder.mkdir(exist_ok=True)
    written = []
    for name, page in GENERATED.items():
        path = folder / f"{name}.md"
        try:
            text = page()
        except ModuleNotFoundError:
            if keep and path.exists():
                continue
            raise
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


# ---- command lines


def commands_page() -> str:
    """Returns the help text of every program and subcommand, as the program itself prints it."""
    parts = ["# Command lines", "Each text below is what the program prints for `--help`."]
    for command, module in PROGRAMS.items():
        text = help_text(command, module)
        parts += [f"## `{command}`", _code(text)]
        for name in _subcommands(text):
            parts += [f"### `{command} {name}`", _code(help_text(command, module, name))]
    return _joined(parts)


def help_text(command: str, module: str, *subcommand: str) -> str:
    """Returns what a program prints for `--help`.

    Args:
        command: How the program is started.
        module: Module with its `main`.
        subcommand: The subcommand to ask, if any.
    """
    main = importlib.import_module(module).main
    printed = io.StringIO()
    arguments = [command.rpartition(" ")[2], *subcommand, "--help"]
    plain = {"COLUMNS": _WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    with (
        patch.object(sys, "argv", arguments),
        patch.dict(os.environ, plain),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main()
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue()).strip()


def _subcommands(text: str) -> list[str]:
    usage = text.partition("\n\n")[0]
    found = _SUBCOMMANDS.search(usage)
    return found[1].split(",") if found else []


# ---- records whose fields carry their help


def settings_page() -> str:
    """Returns the settings of the service: flag, environment variable, default and help."""
    from serving import settings

    rows = [
        [f"`--{name.replace('_', '-')}`", f"`{settings.ENVIRONMENT_PREFIX}{name.upper()}`", _value(default), text]
        for name, default, text in fields(settings.Settings)
    ]
    about = (
        "Each setting is a flag of `python -m serving` and an environment variable. A flag wins over the environment. "
        "Lists are separated by spaces in flags and by commas in the environment."
    )
    return _joined(["# Settings of the service", about, _table(["flag", "environment", "default", "meaning"], rows)])


def recipe_page() -> str:
    """Returns the recipes, the collections, and every key of a recipe, section by section."""
    from training.dataset.collection import collection_files, read_collection
    from training.recipe import Recipe, recipe_files

    recipes = [[f"`{path.stem}`", _first_comment(path)] for path in sorted(recipe_files())]
    collections = [[f"`{path.stem}`", read_collection(path).description] for path in sorted(collection_files())]
    parts = [
        "# Recipes",
        "Files in `training/recipes`: `train.py NAME` runs a recipe, `prepare.py sources NAME` reads a collection.",
        _table(["recipe", "for"], recipes),
        "## Collections",
        _table(["collection", "for"], collections),
        "## Keys",
        "A recipe is a TOML file. Each key below is also a flag of `training/train.py`: `batch_size` in the section "
        "`[schedule]` is `--batch-size`. A flag wins over the recipe, and the recipe over the default.",
    ]
    for name, default, text in fields(Recipe):
        if hasattr(default, "__struct_fields__"):
            rows = [[f"`{key}`", _value(value), help_] for key, value, help_ in fields(type(default))]
            parts += [
                f"### `[{name}]`",
                inspect.getdoc(type(default)) or "",
                _table(["key", "default", "meaning"], rows),
            ]
        else:
            parts.append(f"* `{name}`: {text}")
    return _joined(parts)


def _first_comment(path: Path) -> str:
    """Returns the paragraph with which a recipe begins."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def fields(record: type) -> list[tuple[str, Any, str]]:
    """Returns name, default and help of each field of a msgspec Struct, in order.

    The help is the string below the field, which exists in the source only.
    """
    help_of = {}
    for each in record.__mro__[-4::-1]:  # without msgspec's own, a base before what stands on it
        body = ast.parse(inspect.getsource(each)).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, below in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                help_of[node.target.id] = _string(below)
    return [(name, default, help_of[name]) for name, default in _defaults(record).items()]


def _defaults(record: type) -> dict[str, Any]:
    return {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(record)
    }


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def _value(default: Any) -> str:
    if default is msgspec.NODEFAULT:
        return "required"
    if default is None or default in ("", ()):
        return "–"
    return f"`{json.dumps(msgspec.to_builtins(default, enc_hook=str))}`"


# ---- the service


def metrics_page() -> str:
    """Returns the metrics of the service with their kinds, labels and help texts."""
    from serving.metrics import Metrics

    metrics = Metrics()
    families = text_string_to_metric_families(metrics.text().decode())
    # Without a measurement, the text shows no labels.
    labels = {
        metric.name: getattr(collector, "_labelnames", ())
        for collector in vars(metrics).values()
        if isinstance(collector, MetricWrapperBase)
        for metric in collector.describe()
    }
    rows = [
        [
            f"`{family.name}{'_total' if family.type == 'counter' else ''}`",
            family.type,
            ", ".join(f"`{label}`" for label in labels.get(family.name, ())),
            family.documentation,
        ]
        for family in families
        if not family.name.endswith("_created")
    ]
    about = "`GET /metrics` gives these in Prometheus' text format. [Operate](../operate.md#metrics) has queries."
    return _joined(["# Metrics", about, _table(["metric", "kind", "labels", "meaning"], rows)])


def http_page() -> str:
    """Returns the HTTP interface as its OpenAPI document describes it."""
    document = openapi_document()
    parts = [
        "# HTTP interface",
        "This page is written from the OpenAPI document, which a running service gives at `/schema/openapi.json` and "
        "shows at `/schema`.",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts += _operation(method, path, operation)
    parts += ["## Problem codes", _problems()]
    parts += ["## Records"]
    for name, schema in document["components"]["schemas"].items():
        parts += _record(name, schema)
    return _joined(parts)


def openapi_document() -> dict[str, Any]:
    """Returns the OpenAPI document of the service with the demonstration bundle."""
    from serving.app import create_app
    from serving.settings import Settings

    return create_app(Settings()).litestar.openapi_schema.to_schema()


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterable[str]:
    yield f"## `{method.upper()} {path}`"
    yield operation.get("description") or operation.get("summary", "")
    if parameters := operation.get("parameters"):
        rows = [
            [f"`{each['name']}`", each["in"], _kind(each.get("schema", {})), each.get("description", "")]
            for each in parameters
        ]
        yield _table(["parameter", "in", "kind", "meaning"], rows)
    if body := operation.get("requestBody"):
        yield "Body: " + ", ".join(f"`{media}`" for media in body["content"]) + "."
    rows = [
        [status, _answer(response), response.get("description", "")]
        for status, response in operation["responses"].items()
    ]
    yield _table(["status", "answer", "meaning"], rows)


def _answer(response: Mapping[str, Any]) -> str:
    kinds = {_kind(content.get("schema", {})) for content in response.get("content", {}).values()}
    return ", ".join(sorted(kinds))


def _record(name: str, schema: Mapping[str, Any]) -> Iterable[str]:
    """The document has no help texts of fields, so they come from the record of that name."""
    from models import ranking
    from serving import schemas, species
    from serving.api import model_card

    record = next(vars(module)[name] for module in (schemas, species, model_card, ranking) if name in vars(module))
    meanings = [meaning for _, _, meaning in fields(record)]
    keys = dict(zip((field.encode_name for field in msgspec.structs.fields(record)), meanings, strict=True))
    yield f"### {name}"
    yield inspect.getdoc(record) or ""
    rows = [[f"`{key}`", _kind(each), keys[key]] for key, each in schema.get("properties", {}).items()]
    yield _table(["field", "kind", "meaning"], rows)


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("oneOf") or schema.get("anyOf"):
        return " or ".join(_kind(option) for option in options)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    kind = schema.get("type", "any")
    limits = [f"{word} {schema[key]:g}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([*([kind] if isinstance(kind, str) else [" or ".join(kind)]), *limits])


def _problems() -> str:
    from serving.api.problems import codes_by_status, problem_document

    rows = [
        [str(status), f"`{code}`", problem_document(code, "", "").title]
        for status, codes in codes_by_status().items()
        for code in codes
    ]
    return _table(["status", "code", "title"], rows)


# ---- Markdown


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"```text\n{text}\n```"


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


# ---- results


def results() -> str:
    """Returns the tables of all results of benchmarks."""
    from benchmarks.tables import results_page

    return results_page(PAGES)


GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "commands": commands_page,
    "settings": settings_page,
    "recipe": recipe_page,
    "metrics": metrics_page,
    "http": http_page,
    "results": results,
}
"""Name of each generated page -> what writes it."""


def main() -> None:
    """Writes the pages and names them."""
    for path in write_pages(PAGES):
        print(path)  # noqa: T201


if __name__ == "__main__":
    main()
