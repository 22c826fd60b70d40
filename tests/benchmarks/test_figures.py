"""Each number of a result's table is a figure of its file, or is made of its figures as told here."""

import re
import statistics
from collections import defaultdict

import numpy as np
import pytest

from benchmarks.result import quotients
from benchmarks.tables import results_with_tables

NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?!\w)")


def leaves(node, path=()):
    """Each value of a file with the keys and places that lead to it."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else None
    if children is None:
        yield path, node
    for key, child in children or ():
        yield from leaves(child, (*path, key))


def loader(result):
    for each in result["comparisons"]:
        rates = {rate["variant"]: rate["per_core_s"] for rate in each["rates"]}
        yield quotients(rates["shards"], rates["timm"])
        yield quotients(rates["files"], rates["torchvision"])


def serving(result):
    rates = defaultdict(lambda: defaultdict(list))
    for each in result["figures"]:
        for cell in (cell for turn in each["turns"] for cell in turn["cells"]):
            rates[str(each["contender"])][cell["photograph"], cell["concurrency"]].append(cell["per_s"])
    yield from (rounds for loads in rates.values() for rounds in loads.values())
    for ours in (each for each in rates if "ours" in each):
        for rival in rates.keys() - {ours}:
            yield from (quotients(rates[ours][load], others) for load, others in rates[rival].items())


def serving_overload(result):
    for each in result["servers"]:
        bursts, sums = each["bursts"], [sum(burst["words"].values()) for burst in each["bursts"]]
        yield quotients([burst["good_per_s"] for burst in bursts], [burst["capacity_per_s"] for burst in bursts])
        for words in (["gave up"], ["429", "503"], ["500", "502", "504", "connection lost"]):
            yield quotients([sum(burst["words"].get(word, 0) for word in words) for burst in bursts], sums)


def place_two_coasts(result):
    yield [0.9, 0.95, 1.0, 0.7]  # coverages; weight and floor of the rules
    shares = defaultdict(list)
    for path, value in leaves(result):
        if "interval_95" in path or path[-1] == "value":
            shares[path[: path.index("interval_95")] if "interval_95" in path else path[:-1]].append(value)
    yield from shares.values()


def scale(result):
    yield [sum(result["seconds"].values())]


def streaming(result):
    yield [500]  # px of its photographs
    yield quotients(result["streamed_s"], map(sum, zip(result["unpack_s"], result["packed_s"], strict=True)))


MADE_OF_FIGURES = {
    "loader": loader,
    "serving": serving,
    "serving_overload": serving_overload,
    "train_speed": lambda result: [quotients(*(rate["per_s"] for rate in result["rates"]))],
    "scale": scale,
    "scale_mini": scale,
    "streaming": streaming,
    "serving_memory": lambda result: [[50, result["hostile"]["num_bytes"] / 1000]],  # its picture has 50 MP
    "answer": lambda result: [[1792]],  # features of EfficientNet-B4
    "place_two_coasts": place_two_coasts,
}


def series_of(stem, result):
    """The numbers that belong together: of one record, of one figure over the items of a list, or made of these."""
    series = defaultdict(list)
    for path, value in leaves(result):
        series["keys"] += [int(key) for key in path if isinstance(key, str) and key.isdigit()]
        if isinstance(value, (int, float)):
            series[path[:-1]].append(value)
            for depth in (depth for depth, key in enumerate(path) if isinstance(key, int)):
                series[path[:depth], path[depth + 1 :]].append(value)
    found = [*series.values(), *MADE_OF_FIGURES.get(stem, lambda result: [])(result)]
    return [[*values, statistics.median(values), len(values)] for values in found if values]


def unknown(table, stem, result):
    """The cells with a number that is no figure of the file, rounded as it is; those of a range are of one series."""
    series = series_of(stem, result)
    figures, number_of = np.concatenate(series), np.repeat(range(len(series)), list(map(len, series)))
    words = {part for path, value in leaves(result) for part in (*path, value) if isinstance(part, str)}
    for name in sorted(words, key=len, reverse=True):
        table = table.replace(name, "") if re.search(r"\d", name) and not name.isdigit() else table
    found = []
    for cell in re.split(r"[|;\n]", table):
        places = []
        for number in NUMBER.finditer(cell):
            of_all = [] if cell[number.end() :].lstrip().startswith("%") else [1]
            scales = [*of_all, 100 if "%" in cell else 1000 if " ms" in cell else 1e-6]
            half = 0.5000001 * 10 ** -len(number[0].partition(".")[2])
            away = np.abs(np.outer(scales, figures) - float(number[0].replace(",", ""))).min(axis=0)
            places.append(set(number_of[away <= half].tolist()))
        together = re.search(r"\[\d|\d % of \d", cell)
        if not all(places) or (together and not set.intersection(*places)):
            found.append(cell.strip())
    return found


@pytest.mark.parametrize("found", results_with_tables(), ids=lambda found: f"{found[0].parent.name}-{found[0].stem}")
def test_each_number_of_a_table_is_a_figure_of_its_file(found):
    path, result = found
    assert unknown(result.pop("markdown"), path.stem, result) == []
