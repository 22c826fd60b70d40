from tests.training.insight.studies.ablation.planted import ablation
from tests.training.insight.studies.planted import SEEDS, result
from training.insight.studies.ablation.findings import verdicts
from training.insight.studies.ablation.ladder import LADDER
from training.insight.studies.ablation.page import as_study, plots
from training.insight.studies.report import markdown, read_study, write_study
from training.insight.studies.results import Arm


def test_the_report_says_what_was_planted(tmp_path):
    found = ablation(failing=("frozen_norms",))
    write_study(tmp_path, as_study(found), plots(found))
    told = (tmp_path / "ablation.md").read_text()
    assert "BatchNorm, claimed 5 to 7 points: **confirmed**. +6.0 (+5.5 to +6.5). batch_16 against groups_of_4" in told
    assert "cosine annealing, claimed 1 to 2 points: **refuted**. +0.0" in told
    assert "With 8 GB, at 380 px, 8 pictures a step fit in FP32 (9 do not)" in told
    assert "frozen_norms failed with seed 1 at equal epochs: error (diverged): lost" in told
    assert "memory, claimed half the memory: **confirmed**. 2.00 × less (2.00 × to 2.00 ×)." in told
    assert "| batch_16 | 76.6 [76.3 to 76.6] |" in told
    assert "| frozen_norms | failed | failed |" in told
    assert "## Short runs at 380 px; median [least to most] over the seeds" in told
    assert "| hardware | 301.0 [300.0 to 302.0] | 5.00 [5.00 to 5.00] |" in told
    assert "trains for 2 epochs at 128 px" in told
    assert "confirmed: the mean lies in the claimed range" in told
    assert "* cosine: Cosine instead of steps. What the cosine gives at the same peak rates" in told
    kept = read_study(tmp_path / "ablation.json")
    assert len(kept.arms) == len(LADDER) * len(SEEDS)
    assert [verdict["word"] for verdict in kept.details["verdicts"]] == [each.word for each in verdicts(found)]
    for name in ("epochs", "time", "steps"):
        assert b"<svg" in (tmp_path / f"ablation-{name}.svg").read_bytes()


def test_a_report_of_an_unfinished_study_says_so_first():
    found = as_study(ablation(unfinished="The time is over."))
    assert found.findings[0].text.startswith("**Unfinished**")
    assert "**Unfinished**" in markdown(found)


def test_arms_that_were_not_trained_have_no_row():
    some = [one for one in ablation().equal_epochs if one.arm.name in {"groups_of_4", "batch_16"}]
    found = as_study(ablation(equal_epochs=some, equal_time=[], hardware=[]))
    tables = {each.title.partition(";")[0]: each for each in found.tables}
    assert [row[0] for row in tables["Arms at 128 px"].rows] == ["groups_of_4", "batch_16"]
    assert "Short runs at 380 px" not in tables


def test_a_rate_at_the_edge_of_those_tried_is_told():
    rates = [result(Arm(f"rate_{rate:g}", (), ""), 3) for rate in (1e-5, 1e-4, 1e-3)]

    def told(best, sweep):
        return [
            each.text for each in as_study(ablation(sweep=sweep, best_rate=best)).findings if each.about == "best rate"
        ]

    assert "a better one may lie beyond" in told(1e-3, rates)[0]
    assert "beyond" not in told(1e-4, rates)[0]
    assert "was given and not searched for" in told(1e-4, [])[0]
