"""The tables of docs/measurements.md about serving, by the name of the result that each stands for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from benchmarks.serving import comparison, decoder_memory, fairness_result, memory_result, overload_result
from benchmarks.serving.flags import read_result


def comparison_table(path: Path, link: str) -> str:
    """Answers per second of all servers in closed loop, and the goals."""
    return f"[Result]({link}). {comparison.markdown(read_result(path, comparison.Comparison))}"


def overload_table(path: Path, link: str) -> str:
    """All servers under overload, and the goals."""
    return f"[Result]({link}). {overload_result.markdown(read_result(path, overload_result.OverloadResult))}"


def memory_table(path: Path, link: str) -> str:
    """The memory of our service, and the goals."""
    return f"[Result]({link}). {memory_result.markdown(read_result(path, memory_result.MemoryResult))}"


def fairness_table(path: Path, link: str) -> str:
    """What an honest client gets beside attacks, and the goals."""
    return f"[Result]({link}). {fairness_result.markdown(read_result(path, fairness_result.FairnessResult))}"


def decoder_memory_table(path: Path, link: str) -> str:
    """The memory of a decoder for hostile files, against what was granted."""
    return f"[Result]({link}). {decoder_memory.markdown(read_result(path, decoder_memory.DecoderMemory))}"


SERVING_TABLES: Final[Mapping[str, Callable[[Path, str], str]]] = {
    "serving": comparison_table,
    "serving_overload": overload_table,
    "serving_memory": memory_table,
    "fairness": fairness_table,
    "decoder_memory": decoder_memory_table,
}
"""Name of a result file without its suffix -> function that renders the file as Markdown, given a link to it."""
