"""Program: measures the import structure of the project, so that a change of it can be judged.

python benchmarks/structure.py [CHECKOUT] > structure.json

The checkout is read as text, nothing of it runs. A room is a folder of modules, or a module that stands directly in a
package (`training`, `serving`, `models`).
"""

import json
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

PACKAGES = ("models", "training", "serving")


def main() -> None:
    """Prints the figures of the checkout that is named first on the command line, by default this one."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    sys.path[0] = str(root)
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    lines = {package: _lines(root / package) for package in PACKAGES}
    print(json.dumps({"lines": lines, **_figures(imports)}, indent=2))


def _figures(imports: dict[str, set[str]]) -> dict[str, object]:
    between = {(one, other) for one, others in imports.items() for other in others if _room(one) != _room(other)}
    rooms = {(_room(one), _room(other)) for one, other in between}
    return {
        "modules": len(imports),
        "modules_directly_in": dict(sorted(Counter(name.rpartition(".")[0] or "top" for name in imports).items())),
        "modules_on_each_level": _levels(imports),
        "rooms": len({_room(name) for name in imports}),
        "imports_between_rooms": len(between),
        "arrows_between_rooms": len(rooms),
        "pairs_of_rooms_that_import_each_other": sorted([a, b] for a, b in rooms if a < b and (b, a) in rooms),
    }


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _levels(imports: dict[str, set[str]]) -> list[int]:
    """How many modules stand on each level: level 0 imports nothing, level n imports something of level n - 1."""
    level: dict[str, int] = {}
    for name in TopologicalSorter(imports).static_order():
        level[name] = max((level[other] + 1 for other in imports[name]), default=0)
    counts = Counter(level.values())
    return [counts[at] for at in range(len(counts))]


def _lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


if __name__ == "__main__":
    main()
