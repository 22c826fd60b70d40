"""Planted figures of a comparison: the right ratios and tables follow from them."""

import msgspec
import pytest

from benchmarks.serving.compare import AnswerNote, Cell, Choice, Compare, Comparison, Figures, Turn, markdown
from benchmarks.serving.flags import Network, PictureFile
from benchmarks.serving.server_config import ServerConfig
from benchmarks.serving.servers import OURS, Contender
from training.machine import Machine

MACHINE = Machine("EPYC", 2, 25.0, "Linux", "3.11", {}, "0" * 40)
LITSERVE = Contender("LitServe", "full")
A_CORE_EACH = ServerConfig(workers=2)


def turn(per_s, left=0, numbers=(1, 8)):
    cells = [Cell(name, number, per_s * (2 if name == "1 MP" else 1), 100.0, 200.0, {"200": 9}, 0.02, 240.0)
             for name in ("1 MP", "12 MP") for number in numbers]  # fmt: skip
    return Turn(cells, A_CORE_EACH, 5.0, 300.0, 400.0, left)


def comparison(ours=(8.0, 9.0, 7.0), litserve=(4.0, 3.0, 3.5), **changes):
    found = Comparison(
        machine=MACHINE,
        measured_on="2026-11-21",
        setting=Compare(rounds=3),
        network=Network("random", "efficientnet_b4", 380, 5337, "a" * 64),
        photographs=[PictureFile("1 MP", 1.0, 300_000), PictureFile("12 MP", 12.2, 2_900_000)],
        versions={"litserve": "0.2.19"},
        own_versions={"litestar": "2.25"},
        choices=[Choice(LITSERVE, {1: ServerConfig(intra_op=2, spinning=True), 8: A_CORE_EACH})],
        figures=[
            Figures(OURS, [turn(per_s) for per_s in ours]),
            Figures(LITSERVE, [turn(per_s, left=5) for per_s in litserve]),
        ],
        answers=[AnswerNote(contender, "a.jpg", "taxon-1", 0.61) for contender in (OURS, LITSERVE)],
    )
    return msgspec.structs.replace(found, **changes)


def test_a_result_is_read_back_from_its_file():
    result = comparison()
    assert msgspec.json.decode(msgspec.json.encode(result), type=Comparison) == result


def test_ratios_are_taken_within_a_round():
    result = comparison(ours=(8.0, 9.0, 7.0), litserve=(4.0, 3.0, 3.5))
    assert result.ratios(LITSERVE, "12 MP", 8) == [2.0, 3.0, 2.0]
    assert "| LitServe | 2.00 [2.00 to 3.00] |" in markdown(result)  # not the ratio of the medians, 8 / 3.5


def test_figures_of_several_configurations_are_combined():
    turns = [turn(4.0, numbers=(1,)), turn(6.0, numbers=(8,)), turn(5.0, numbers=(1,)), turn(7.0, numbers=(8,))]
    figures = Figures(LITSERVE, turns)
    assert (figures.per_s("12 MP", 1), figures.per_s("12 MP", 8)) == ([4.0, 5.0], [6.0, 7.0])


@pytest.mark.parametrize(
    ("decoding", "taxon_id", "score", "differs"),
    [
        ("full", "taxon-1", 0.6, 0),
        ("full", "taxon-2", 0.61, 1),
        ("full", "taxon-1", 0.5, 1),
        ("reduced", "taxon-1", 0.61, 0),
        ("reduced", "taxon-1", 0.6, 1),
    ],
)
def test_servers_whose_answers_differ_are_named(decoding, taxon_id, score, differs):
    rival = Contender("LitServe", decoding)
    notes = [
        AnswerNote(OURS, "a.jpg", "taxon-1", 0.61),
        AnswerNote(OURS, "b.jpg", "taxon-2", 0.61),
        AnswerNote(rival, "a.jpg", taxon_id, score),
    ]
    result = comparison(answers=notes)
    assert len(result.disagreements) == differs
    page = markdown(result)
    assert (f"differ from ours: {rival} on a.jpg" in page) == bool(differs)
    assert ("differ from ours: none on 2 pictures" in page) != bool(differs)


def test_the_table_holds_medians_and_ranges():
    page = markdown(comparison())
    (row,) = [line for line in page.splitlines() if line.startswith("| ours | 1")]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        "16.0 [14.0 to 18.0]", "16.0 [14.0 to 18.0]", "8.0 [7.0 to 9.0]", "8.0 [7.0 to 9.0]",
    ]  # fmt: skip
    (other,) = [line for line in page.splitlines() if line.startswith("| LitServe | 200 ms")]
    assert other.endswith("| 5 |")
