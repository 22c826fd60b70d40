import math

from tests.training.insight.studies.batch_sizes.planted import planted
from tests.training.insight.studies.planted import epoch
from training.insight.studies.batch_sizes.findings import findings
from training.insight.studies.results import Arm, ArmResult


def told(found, about):
    return [finding.text for finding in findings(found) if finding.about == about]


def answers(found):
    time, epochs = told(found, "bigger_is_better")
    assert time.startswith("Is bigger better, after equal time? ")
    assert epochs.startswith("Is bigger better, after equal epochs? ")
    return time.partition("? ")[2], epochs.partition("? ")[2]


def test_bigger_is_better_where_every_larger_batch_is():
    found = planted(lambda cell: 70 + math.log2(cell.size))
    assert answers(found) == ("Yes: all 8 comparisons with the smallest batch are better.",) * 2


def test_bigger_is_not_better_where_some_are_worse_and_none_better():
    found = planted(lambda cell: 70 - (cell.size == 256))
    assert answers(found)[1] == "No: of 8 comparisons with the smallest batch 0 are better, 4 worse, 4 not told apart."


def test_equal_time_may_answer_otherwise_than_equal_epochs():
    found = planted(lambda cell: 70 - cell.size / 100, by_time=lambda cell: 70 + cell.size / 100)
    time, epochs = answers(found)
    assert time.startswith("Yes")
    assert epochs.startswith("No: of 8 comparisons with the smallest batch 0 are better, 8 worse")


def test_it_depends_where_scaled_rates_gain_and_unscaled_ones_lose():
    found = planted(lambda cell: 70 + (1 if cell.scaled else -1) * (cell.size > 16))
    assert answers(found)[1].startswith("It depends on the setting: of 8 comparisons")
    assert "4 are better, 4 worse" in answers(found)[1]
    light, heavy = told(found, "scaling")
    assert "at batch 256, light augmentation, equal epochs: +2.0 points (+2.0 to +2.0), better beside unscaled" in light
    assert "square root of the batch size, as derived for Adam (Malladi et al. 2022)" in heavy


def test_partly_where_only_one_augmentation_gains():
    found = planted(lambda cell: 70 + 2 * (cell.augmentation == "heavy" and cell.size > 16))
    assert (
        answers(found)[1] == "Partly: of 8 comparisons with the smallest batch 4 are better, 0 worse, 4 not told apart."
    )
    light = [text for text in told(found, "accuracy") if "epochs, light" in text and "unscaled" in text]
    assert light == [
        "After equal epochs, light augmentation, unscaled rate: beside batch 16, not told apart: 64 (+0.0 points), "
        "256 (+0.0 points)."
    ]
    smallest, *_, largest = told(found, "augmentation")
    assert smallest.startswith("Heavy augmentation at batch 16, scaled rate, equal epochs: +0.0 points")
    assert "+2.0 points" in largest


def test_one_seed_tells_nothing_apart():
    found = planted(lambda cell: cell.size / 10, seeds=(0,))
    assert answers(found)[1].startswith("Not shown: none of 8 comparisons")


def test_a_few_validation_pictures_tell_a_point_apart_from_nothing():
    found = planted(lambda cell: 70 + (cell.size > 16), judged=100)
    assert answers(found)[1].startswith("Not shown: none of 8 comparisons")


def test_speed_names_the_smallest_batch_that_is_as_fast():
    text = told(planted(lambda cell: 70.0), "throughput")[0]
    assert text == (
        "Light augmentation: batch 256 is fastest with 295.0 pictures/s, 2.95 times batch 16; batch 64 is the smallest "
        "within 3 % of it."
    )


def test_larger_batches_that_buy_no_speed_are_told():
    text = told(planted(lambda cell: 70.0, speed={16: 100.0, 64: 101.0, 256: 90.0}), "throughput")[0]
    assert text.endswith("batch 16, the smallest, is within 3 % of it: larger ones buy no speed.")


def test_memory_is_told_by_picture():
    assert told(planted(lambda cell: 70.0), "memory") == [
        "Memory: 2.60 GB at batch 16, 26.60 GB at batch 256: 100 MB for every picture more."
    ]


def test_the_gain_of_a_gpu_is_measured_or_said_to_be_missing():
    cpu = ArmResult(Arm("cpu", (), ""), 0, [epoch(1, 60.0, 1.9, 0.1)], 5.0, readings_per_s=2.5)
    assert (
        "100.0 pictures/s and the same machine's CPU 2.50 in FP32, both at batch 16: 40 times"
        in (told(planted(lambda cell: 70.0, cpu=cpu), "cpu_to_gpu")[0])
    )
    assert "not measured" in told(planted(lambda cell: 70.0), "cpu_to_gpu")[0]
    assert (
        "not measured: this study trained on the CPU" in told(planted(lambda cell: 70.0, device="cpu"), "cpu_to_gpu")[0]
    )


def test_a_batch_that_does_not_fit_leaves_the_others_to_be_compared():
    found = planted(lambda cell: 70.0, failing={"b256-heavy-scaled"})
    assert told(found, "failed") == ["b256-heavy-scaled gave no figures: error (out_of_memory): it does not fit."]
    assert "none of 7 comparisons" in answers(found)[1]
