import pytest

from tests.training.insight.studies.ablation.planted import TOP1, ablation, short_runs
from tests.training.insight.studies.planted import SEEDS, result
from training.insight.studies.ablation.findings import effects, hardware_arms, verdicts
from training.insight.studies.ablation.ladder import LADDER, arms


def words(found):
    return {verdict.claim.name: verdict.word for verdict in verdicts(found)}


def test_planted_effects_give_the_right_verdicts():
    assert words(ablation()) == {
        "BatchNorm": "confirmed",
        "two learning rates": "confirmed",
        "cosine annealing": "refuted",
        "all together": "larger",
        "speed": "confirmed",
        "memory": "confirmed",
        "batch": "confirmed",
    }


def test_other_planted_effects_give_other_verdicts():
    top1 = TOP1 | {"groups_of_4": 74.5, "two_rates_3x": 81.5, "cosine": 83.0, "hardware": 75.0}
    found = words(ablation(top1=top1))
    assert (found["BatchNorm"], found["two learning rates"], found["cosine annealing"], found["all together"]) == (
        "smaller",
        "larger",
        "confirmed",
        "smaller",
    )


def test_seeds_that_disagree_decide_nothing():
    runs = [
        result(arm, seed, top1=TOP1[arm.name] + (seed - 1) * (8 if arm.name == "batch_16" else 0))
        for arm in arms(LADDER, 3e-5, 1e-4)
        for seed in SEEDS
    ]
    assert words(ablation(equal_epochs=runs))["BatchNorm"] == "undecided"


def test_a_single_seed_decides_nothing_but_memory_limits():
    found = words(ablation(seeds=(0,)))
    assert found.pop("batch") == "confirmed"
    assert set(found.values()) == {"undecided"}


def test_on_a_cpu_speed_memory_and_batch_are_not_measured():
    found = {verdict.claim.name: verdict for verdict in verdicts(ablation("cpu"))}
    assert [found[name].word for name in ("speed", "memory", "batch")] == ["not measured"] * 3
    assert found["speed"].reason.startswith("CPU")
    assert found["BatchNorm"].word == "confirmed"
    assert found["two learning rates"].reason == "two_rates_3x against batch_16 at 128 px, 3 seeds."


def test_an_arm_that_failed_is_named_where_its_claim_is_not_measured():
    found = {verdict.claim.name: verdict for verdict in verdicts(ablation(failing=("groups_of_4",)))}
    assert found["BatchNorm"].word == "not measured"
    assert "groups_of_4 failed: error (diverged): lost" in found["BatchNorm"].reason
    assert found["memory"].word == "confirmed"


def test_what_is_claimed_of_hardware_is_judged_by_its_own_runs_and_names_their_size():
    slower = short_runs(LADDER, speed={})
    found = {verdict.claim.name: verdict for verdict in verdicts(ablation(hardware=slower))}
    assert (found["speed"].word, found["memory"].word) == ("refuted", "confirmed")
    assert found["speed"].reason == "hardware against directml_baseline at 380 px, 3 seeds."
    assert found["memory"].reason == "amp against batch_16 at 380 px, 3 seeds."
    assert found["batch"].reason.startswith("With 8 GB, at 380 px, 8 pictures a step fit in FP32 (9 do not)")
    assert found["BatchNorm"].reason == "batch_16 against groups_of_4 at 128 px, 3 seeds."


def test_runs_on_accuracy_stand_in_for_none_on_hardware():
    found = {verdict.claim.name: verdict for verdict in verdicts(ablation(hardware=[], largest_batches={}))}
    assert [found[name].word for name in ("speed", "memory", "batch")] == ["not measured"] * 3
    assert "left out, or are not done" in found["speed"].reason
    failed = ablation(largest_batches={}, largest_batch_error="A step fails.")
    assert "A step fails." in [verdict.reason for verdict in verdicts(failed)]


def test_the_arms_that_claims_about_hardware_compare_are_the_ends_and_mixed_precision():
    assert hardware_arms(LADDER) == ["directml_baseline", "batch_16", "amp", "hardware"]


def test_seeds_are_compared_with_themselves():
    step = {effect.step.name: effect for effect in effects(ablation(noise=(-20.0, 0.0, 20.0)))}["batch_16"]
    assert (step.points.low, step.points.high) == pytest.approx((6, 6), abs=0.6)
    assert step.speed.mean == pytest.approx(1)
    assert step.memory.mean == pytest.approx(2.5)


def test_warming_up_does_not_count_for_the_speed():
    found = {effect.step.name: effect for effect in effects(ablation())}
    assert found["amp"].speed.mean == pytest.approx(3, rel=0.02)
