from tests.training.insight.studies.planted import SEEDS, result
from tests.training.insight.studies.planted_ablation import TOP1, ablation
from training.insight.studies.ladder import LADDER, arms


def words(found):
    return {verdict.claim.name: verdict.word for verdict in found.verdicts}


def test_planted_effects_give_the_right_verdicts():
    assert words(ablation()) == {
        "BatchNorm": "confirmed",
        "two learning rates": "confirmed",
        "cosine annealing": "refuted",
        "all together": "larger",
        "speed": "confirmed",
        "memory": "confirmed",
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


def test_a_single_seed_decides_nothing():
    found = words(ablation(seeds=(0,)))
    assert set(found.values()) == {"undecided"}


def test_on_a_cpu_speed_and_memory_are_not_measured():
    found = {verdict.claim.name: verdict for verdict in ablation("cpu").verdicts}
    assert [found[name].word for name in ("speed", "memory")] == ["not measured"] * 2
    assert found["speed"].reason.endswith("this is a CPU.")
    assert found["BatchNorm"].word == "confirmed"
    assert found["two learning rates"].reason == "two_rates_3x against batch_16 at 128 px, 3 seeds."


def test_a_failed_arm_is_named_in_the_reason():
    found = {verdict.claim.name: verdict for verdict in ablation(failing=("groups_of_4",)).verdicts}
    assert found["BatchNorm"].word == "not measured"
    assert "groups_of_4 failed: error (diverged): lost" in found["BatchNorm"].reason
    assert found["memory"].word == "confirmed"


def test_claims_about_hardware_are_not_judged_at_another_picture_size():
    found = {verdict.claim.name: verdict for verdict in ablation(recipe_px=380).verdicts}
    assert (found["speed"].word, found["memory"].word) == ("not measured", "not measured")
    assert found["speed"].reason == "The claim is about 380 px, and the arms were trained at 128 px."
    assert found["BatchNorm"].word == "confirmed"


def test_arms_near_chance_decide_nothing():
    found = {verdict.claim.name: verdict for verdict in ablation(chance=0.45).verdicts}
    assert found["cosine annealing"].word == "undecided"
    assert "near chance (45.0 %)" in found["cosine annealing"].reason
