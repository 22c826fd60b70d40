import math

from tests.training.insight.studies.planted_grid import planted
from training.insight.studies.batch_sizes import findings


def told(found, about):
    return [finding.text for finding in findings(found) if finding.about == about]


def answers(found):
    time, epochs = told(found, "bigger_is_better")
    assert time.startswith("Are larger batches better after equal time? ")
    assert epochs.startswith("Are larger batches better after equal epochs? ")
    return time.partition("? ")[2], epochs.partition("? ")[2]


def test_bigger_is_better_where_every_larger_batch_is():
    found = planted(lambda cell: 70 + math.log2(cell.size))
    assert (
        answers(found)
        == ("Yes: of 8 comparisons with the smallest batch, 8 are better, 0 worse and 0 not significantly different.",)
        * 2
    )


def test_bigger_is_not_better_where_some_are_worse_and_none_better():
    found = planted(lambda cell: 70 - (cell.size == 256))
    assert answers(found)[1] == (
        "No: of 8 comparisons with the smallest batch, 0 are better, 4 worse and 4 not significantly different."
    )


def test_equal_time_may_answer_otherwise_than_equal_epochs():
    found = planted(lambda cell: 70 - cell.size / 100, by_time=lambda cell: 70 + cell.size / 100)
    time, epochs = answers(found)
    assert time.startswith("Yes")
    assert epochs.startswith("No: of 8 comparisons with the smallest batch, 0 are better, 8 worse")


def test_it_depends_where_scaled_rates_gain_and_unscaled_ones_lose():
    found = planted(lambda cell: 70 + (1 if cell.scaled else -1) * (cell.size > 16))
    assert answers(found)[1].startswith("It depends: of 8 comparisons")
    assert "4 are better, 4 worse" in answers(found)[1]
    light, heavy = told(found, "scaling")
    assert light == (
        "Scaled rates at batch size 256, light augmentation, equal epochs: +2.0 points (+2.0 to +2.0), better relative "
        "to unscaled rates."
    )
    assert "heavy augmentation" in heavy


def test_partly_where_only_one_augmentation_gains():
    found = planted(lambda cell: 70 + 2 * (cell.augmentation == "heavy" and cell.size > 16))
    assert (
        answers(found)[1]
        == "Partly: of 8 comparisons with the smallest batch, 4 are better, 0 worse and 4 not significantly different."
    )
    light = [text for text in told(found, "accuracy") if "epochs, light" in text and "unscaled" in text]
    assert light == [
        "Top-1 relative to batch size 16 after equal epochs, light augmentation, unscaled rate: 64: +0.0 points "
        "(-0.1 to +0.1), not significantly different; 256: +0.0 points (-0.1 to +0.1), not significantly different."
    ]
    smallest, *_, largest = told(found, "augmentation")
    assert smallest.startswith("Heavy augmentation at batch size 16, scaled rate, equal epochs: +0.0 points")
    assert "+2.0 points" in largest


def test_one_seed_shows_no_difference():
    found = planted(lambda cell: cell.size / 10, seeds=(0,))
    assert answers(found)[1].startswith("Not shown: none of 8 comparisons")


def test_one_point_is_not_significant_on_few_validation_pictures():
    found = planted(lambda cell: 70 + (cell.size > 16), judged=100)
    assert answers(found)[1].startswith("Not shown: none of 8 comparisons")


def test_speed_names_the_smallest_batch_that_is_as_fast():
    text = told(planted(lambda cell: 70.0), "speed")[0]
    assert text == (
        "Light augmentation: batch size 256 is fastest with 295.0 pictures/s, 2.95 times batch size 16; 64 is the "
        "smallest within 3 % of it (medians)."
    )


def test_the_smallest_batch_is_named_if_larger_ones_are_not_faster():
    text = told(planted(lambda cell: 70.0, speed={16: 100.0, 64: 101.0, 256: 90.0}), "speed")[0]
    assert text.endswith("1.01 times batch size 16; 16 is the smallest within 3 % of it (medians).")


def test_memory_is_given_per_picture():
    assert told(planted(lambda cell: 70.0), "memory") == [
        "GPU memory: 2.60 GB at batch size 16, 26.60 GB at 256: 100 MB for each further picture."
    ]


def test_a_batch_that_does_not_fit_leaves_the_others_to_be_compared():
    found = planted(lambda cell: 70.0, failing={"b256-heavy-scaled"})
    assert told(found, "failed") == ["b256-heavy-scaled failed: error (out_of_memory): it does not fit."]
    assert "none of 7 comparisons" in answers(found)[1]
