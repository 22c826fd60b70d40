"""Program: measures the size of the project, so that a change of it can be judged.

python benchmarks/structure.py [CHECKOUT] > structure.json
python benchmarks/structure.py --check      # part of `make check`: compares with benchmarks/budgets.toml
"""

import argparse
import ast
import io
import json
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import msgspec

PACKAGES = ("models", "training", "serving")
# A function that was trimmed to a limit is not designed: its length is told, and fails no check.
_TOLD_ONLY = "function_lines"
BUDGETS = Path(__file__).with_name("budgets.toml")
_NOT_WRITTEN_BY_HAND = {"generated", "vendor", "MODEL_CARD.md"}
_NOT_COUNTED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def main() -> None:
    """Prints the figures of a checkout; with --check exits with 1 if one is above its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", default=".", type=Path)
    parser.add_argument("--check", action="store_true", help="compare the sizes with benchmarks/budgets.toml")
    args = parser.parse_args()
    root = args.checkout.resolve()
    sys.path[0] = str(root)
    sizes = _sizes(root)
    if args.check:
        sys.exit(_compare(sizes, tomllib.loads(BUDGETS.read_text(encoding="utf-8"))))
    print(json.dumps({"sizes": sizes}, indent=2))


def _compare(sizes: dict[str, int], budgets: dict[str, int]) -> int:
    over = {name: (sizes[name], limit) for name, limit in budgets.items() if sizes[name] > limit}
    for name, (size, limit) in over.items():
        remedy = "look whether it does one step" if name == _TOLD_ONLY else "make it smaller"
        print(f"{name}: {size:,}, budget {limit:,}: {remedy}, or raise the budget in a commit that says why")
    return 1 if over.keys() - {_TOLD_ONLY} else 0


def _sizes(root: Path) -> dict[str, int]:
    product = [path for package in PACKAGES for path in _tracked(root, f"{package}/*.py")]
    return {
        "tokens": _tokens(product),
        "function_lines": max(map(_longest_function, product)),
        "packed_assignments": sum(map(_packed_assignments, product)),
        "modules": sum(path.name != "__init__.py" for path in product),
        **_settings(),
        "test_tokens": _tokens(_tracked(root, "tests/*.py")),
        "benchmark_tokens": _tokens(_tracked(root, "benchmarks/*.py")),
        "javascript_lines": _lines([path for path in _tracked(root, "serving/web/*.js") if "vendor" not in path.parts]),
        "markdown_words": sum(
            len(path.read_text(encoding="utf-8").split())
            for path in _tracked(root, "*.md")
            if not _NOT_WRITTEN_BY_HAND & {*path.parts}
        ),
    }


def _tracked(root: Path, pattern: str) -> list[Path]:
    """Files that git tracks; outside of a checkout all that are there."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", pattern], cwd=root, check=True, capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return [path for path in root.glob(pattern.replace("/*", "/**/*")) if ".venv" not in path.parts]
    return [root / name for name in listed.split("\n") if name and (root / name).exists()]


def _lines(files: list[Path]) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in files)


def _longest_function(path: Path) -> int:
    nodes = ast.walk(ast.parse(path.read_bytes()))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return max(((node.end_lineno or 0) - node.lineno + 1 for node in functions), default=0)


def _packed_assignments(path: Path) -> int:
    """Counts lines such as `a, b = x, y`, which say two things at once; a swap needs one."""
    assignments = (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Assign))
    return sum(_is_packed(node.targets[0], node.value) for node in assignments)


def _is_packed(target: ast.expr, value: ast.expr) -> bool:
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    names = {ast.unparse(element) for element in target.elts}
    read = {ast.unparse(node) for node in ast.walk(value) if isinstance(node, ast.expr)}
    return not names & read


def _tokens(files: list[Path]) -> int:
    return sum(_tokens_of(path.read_text(encoding="utf-8")) for path in files)


def _tokens_of(source: str) -> int:
    """How many tokens a module has, without comments, docstrings, line ends and indentation."""
    docstrings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    count = 0
    depth = 0  # of f-strings: from Python 3.12 on each has many tokens, and counts as one all the same
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        count += depth == 0 and token.type not in _NOT_COUNTED and token.start not in docstrings
        depth += (kind == "FSTRING_START") - (kind == "FSTRING_END")
    return count


def _settings() -> dict[str, int]:
    """How many values a user can set in each program that has many."""
    from serving.folder.command import IdentifyFolder
    from serving.settings import Settings
    from training.export import Export
    from training.recipe import Recipe

    records: dict[str, type[msgspec.Struct]] = {
        "recipe": Recipe,
        "service": Settings,
        "folder": IdentifyFolder,
        "export": Export,
    }
    return {f"{name}_settings": _fields(record) for name, record in records.items()}


def _fields(record: type[msgspec.Struct]) -> int:
    types = [field.type for field in msgspec.structs.fields(record)]
    nested = [kind for kind in types if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
    return len(types) - len(nested) + sum(map(_fields, nested))


if __name__ == "__main__":
    main()
