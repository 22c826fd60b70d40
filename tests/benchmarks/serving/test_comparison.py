"""Planted figures of a comparison: the right ratios, goals and tables follow from them."""

import msgspec
import pytest

from benchmarks.serving.comparison import (
    AnswerNote,
    Cell,
    Choice,
    Compare,
    Comparison,
    Figures,
    GeneratorCost,
    Trial,
    Turn,
    markdown,
    targets,
)
from benchmarks.serving.flags import Network, PictureFile
from benchmarks.serving.overhead import Overhead
from benchmarks.serving.server_config import ServerConfig
from benchmarks.serving.servers import OURS, Contender
from training.machine import Machine

MACHINE = Machine("EPYC", 2, 25.0, "Linux", "3.11", {}, "0" * 40)
B4 = Network("random", "efficientnet_b4", 380, 5337, "a" * 64)
SMALL = Network("flowers17", "efficientnet_b4", 128, 17, "b" * 64)
LITSERVE = Contender("LitServe", "full")
A_CORE_EACH, ALL_CORES = ServerConfig(workers=2), ServerConfig(intra_op=2, spinning=True)


def turn(per_s, setting=A_CORE_EACH, left=0, **concurrencies):
    cells = [Cell(name, number, per_s * (2 if name == "1 MP" else 1), 100.0, 200.0, {"200": 9}, 0.02, 240.0)
             for name in ("1 MP", "12 MP") for number in concurrencies.get("numbers", (1, 8))]  # fmt: skip
    return Turn(cells, setting, 5.0, 300.0, 400.0, left)


def comparison(ours=(8.0, 9.0, 7.0), litserve=(4.0, 3.0, 3.5), network=B4, **changes):
    found = Comparison(
        machine=MACHINE,
        measured_on="2026-11-21",
        setting=Compare(rounds=3, note="A quiet machine."),
        network=network,
        photographs=[PictureFile("1 MP", 1.0, 300_000), PictureFile("12 MP", 12.2, 2_900_000)],
        versions={"litserve": "0.2.19"},
        own_versions={"litestar": "2.25"},
        generator=[GeneratorCost("1 MP", 0.3, 2000.0), GeneratorCost("12 MP", 1.2, 400.0)],
        choices=[Choice(LITSERVE, [Trial(A_CORE_EACH, {1: 2.0, 8: 4.0}), Trial(ALL_CORES, {1: 3.0, 8: 3.0})])],
        figures=[
            Figures(OURS, [turn(per_s) for per_s in ours]),
            Figures(LITSERVE, [turn(per_s, left=5) for per_s in litserve]),
        ],
        answers=[AnswerNote(contender, "a.jpg", "taxon-1", 0.61) for contender in (OURS, LITSERVE)],
        overhead=[Overhead("1 MP", 40, 120.0, 20.0, 96.0, 4.0), Overhead("12 MP", 40, 180.0, 76.0, 98.0, 6.0)],
    )
    found = msgspec.structs.replace(found, **changes)
    return msgspec.structs.replace(found, targets=targets(found))


def target(result, *words):
    (found,) = [each for each in result.targets if all(word in each.name for word in words)]
    return found


def test_a_result_is_read_back_from_its_file():
    result = comparison()
    assert msgspec.json.decode(msgspec.json.encode(result), type=Comparison) == result


def test_ratios_are_taken_within_a_round():
    result = comparison(ours=(8.0, 9.0, 7.0), litserve=(4.0, 3.0, 3.5))
    assert result.ratios(LITSERVE, "12 MP", 8) == [2.0, 3.0, 2.0]
    assert target(result, "12 MP", "8 at a time", "LitServe").value == 2.0  # the median, not of the medians: 8 / 3.5


@pytest.mark.parametrize(("litserve", "holds"), [((4.0, 4.0, 4.0), True), ((4.1, 4.1, 4.1), False)])
def test_a_goal_holds_up_to_its_limit(litserve, holds):
    found = target(comparison(ours=(8.0, 8.0, 8.0), litserve=litserve), "12 MP", "8 at a time", "LitServe")
    assert (found.goal, found.holds) == (2.0, holds)
    assert (
        "MISSED" in markdown(comparison(ours=(8.0, 8.0, 8.0), litserve=litserve)).split(found.name)[1][:60]
    ) != holds


def test_goals_apply_to_the_reference_network_only():
    result = comparison(network=SMALL)
    assert target(result, "12 MP", "8 at a time", "LitServe").value == 2.0
    assert {each.holds for each in result.targets if each.unit == "x"} == {None}


def test_the_goals_of_a_rival_that_was_left_out_are_not_checked():
    found = target(comparison(), "12 MP", "8 at a time", "BentoML")
    assert (found.value, found.holds) == (None, None)


def test_the_overhead_beyond_decode_and_run_has_a_goal():
    result = comparison()
    assert [target(result, name, "beyond").holds for name in ("1 MP,", "12 MP,")] == [True, False]


def test_each_concurrency_has_the_fastest_configuration():
    (choice,) = comparison().choices
    assert (choice.best(1), choice.best(8)) == (ALL_CORES, A_CORE_EACH)
    assert "2 threads a run, spinning" in markdown(comparison())


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
    assert (f"Answers differ: {rival} on a.jpg" in page) == bool(differs)
    assert ("All servers gave the same answers to 2 pictures, of which 2 differ" in page) != bool(differs)


@pytest.mark.parametrize(
    ("taxon_id", "score", "different"), [("taxon-1", 0.65, 1), ("taxon-1", 0.7, 2), ("taxon-2", 0.6, 2)]
)
def test_agreement_on_a_single_answer_is_no_agreement(taxon_id, score, different):
    notes = [AnswerNote(OURS, "a.jpg", "taxon-1", 0.6), AnswerNote(OURS, "b.jpg", taxon_id, score)]
    result = comparison(answers=notes)
    assert result.num_different == different
    assert ("was not tested" in markdown(result)) == (different == 1)


def test_the_table_holds_medians_and_ranges():
    page = markdown(comparison())
    (row,) = [line for line in page.splitlines() if line.startswith("| ours | 1")]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == [
        "16.0 [14.0 to 18.0]", "16.0 [14.0 to 18.0]", "8.0 [7.0 to 9.0]", "8.0 [7.0 to 9.0]",
    ]  # fmt: skip
    assert "| LitServe | 2.00 [2.00 to 3.00] |" in page
    assert "A quiet machine." in page
    (other,) = [line for line in page.splitlines() if line.startswith("| LitServe | 200 ms")]
    assert other.endswith("| 5 |")
