from tests.training.insight.studies.planted import result
from tests.training.insight.studies.planted_ablation import ablation
from training.insight.studies.ablation_page import describe
from training.insight.studies.plots import draw
from training.insight.studies.results import Arm


def content(found):
    return describe(found, "herbarium.pt", "trains for 2 epochs")


def test_the_page_states_the_planted_effects():
    found = ablation(failing=("frozen_norms",))
    described = content(found)
    findings = "\n".join(finding.text for finding in described.findings)
    assert (
        "BatchNorm, claimed 5 to 7 points: **confirmed**. +6.0 (+5.5 to +6.5). batch_16 against groups_of_4" in findings
    )
    assert "cosine annealing, claimed 1 to 2 points: **refuted**. +0.0" in findings
    assert "frozen_norms failed with seed 1 at equal epochs: error (diverged): lost" in findings
    assert "memory, claimed half the memory: **confirmed**. 2.00 × less (2.00 × to 2.00 ×)." in findings
    assert "confirmed: the mean lies in the claimed range" in findings
    tables = {each.title.partition(";")[0]: {row[0]: row for row in each.rows} for each in described.tables}
    assert tables["Arms at 128 px"]["batch_16"][1] == "76.6 [76.3 to 76.6]"
    assert tables["Arms at 128 px"]["frozen_norms"][1:3] == ["failed", "failed"]
    assert "starts from herbarium.pt, trains for 2 epochs" in described.about
    assert {plot.name for plot in described.plots} == {"epochs", "time", "steps"}
    assert all(b"<svg" in draw(plot) for plot in described.plots)


def test_a_step_is_compared_with_its_parent_seed_by_seed():
    (_, steps, *_) = content(ablation(noise=(-20.0, 0.0, 20.0))).tables
    rows = {row[0].partition(":")[0]: row for row in steps.rows}
    assert rows["batch_16"][2].startswith("+6.0 (+5.")
    assert rows["batch_16"][4].startswith("1.00 ×")
    assert rows["batch_16"][5].startswith("2.50 ×")
    assert rows["amp"][4].startswith("2.98 ×")  # the slow first epoch does not count


def test_arms_that_were_not_trained_have_no_row():
    some = [one for one in ablation().equal_epochs if one.arm.name in {"groups_of_4", "batch_16"}]
    found = content(ablation(equal_epochs=some, equal_time=[]))
    tables = {each.title.partition(";")[0]: each for each in found.tables}
    assert [row[0] for row in tables["Arms at 128 px"].rows] == ["groups_of_4", "batch_16"]


def test_a_rate_at_the_edge_of_those_tried_is_noted():
    rates = [result(Arm(f"rate_{rate:g}", (), ""), 3) for rate in (1e-5, 1e-4, 1e-3)]

    def told(best, sweep):
        return [
            each.text for each in content(ablation(sweep=sweep, best_rate=best)).findings if each.about == "best rate"
        ]

    assert "a better one may lie beyond" in told(1e-3, rates)[0]
    assert "beyond" not in told(1e-4, rates)[0]
    assert "was set without a search" in told(1e-4, [])[0]
