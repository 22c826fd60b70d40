import gc
import time
from datetime import date

import msgspec
import numpy as np
import pytest

from tests.training.dataset.report.sample_report import (
    CROCUS,
    IRIS,
    LEFT_OUT,
    PICTURES,
    ROSE,
    collection,
    make_report,
    picture,
    taxonomy,
)
from training.dataset.report import Report
from training.dataset.report.reasons import MEANINGS, UNKNOWN
from training.dataset.report.schema import NameFindings
from training.dataset.report.summary import summarize
from training.dataset.sources.record import LeftOut


def test_pictures_are_counted_by_source_and_split():
    report = make_report()
    wild, house = report.sources
    assert (wild.name, wild.num_pictures, wild.num_outputs) == ("wild", 4, 2)
    assert wild.by_split == {"train": 3, "validation": 0, "calibration": 0, "test": 1}
    assert (house.num_pictures, house.num_outputs, house.by_split["validation"]) == (1, 1, 1)
    assert (report.num_pictures, report.num_outputs, report.num_taxa) == (5, 3, 3)
    assert report.by_split == {"train": 3, "validation": 1, "calibration": 0, "test": 1}


def test_classes_stand_by_size_with_their_splits():
    classes = make_report().classes
    assert [(size.key, size.num_pictures) for size in classes] == [(ROSE, 3), (CROCUS, 1), (IRIS, 1)]
    assert classes[0].by_split == {"train": 2, "test": 1}
    assert classes[0].scientific_name == "Rosa × alba"


def test_small_classes_are_listed():
    assert [size.key for size in make_report(rules=collection(few_pictures=2)).few] == [CROCUS, IRIS]
    assert len(make_report(rules=collection(few_pictures=4)).few) == 3
    assert make_report(rules=collection(few_pictures=0)).few == ()


def test_a_class_without_a_picture_is_a_small_class():
    report = make_report(pictures=PICTURES[:4], splits=["train"] * 4)
    assert (report.few[0].key, report.few[0].num_pictures) == (CROCUS, 0)


def test_classes_without_training_pictures_are_counted():
    assert make_report().without == {"train": 1, "validation": 2, "calibration": 3, "test": 2}


def test_a_class_of_two_sources_is_in_both_curves_and_once_in_the_classes():
    shared = [picture("a.jpg"), picture("b.jpg"), picture("c.jpg", source="house")]
    report = make_report(pictures=shared, splits=["train"] * 3)
    assert report.curves == {"wild": (2,), "house": (1,)}
    assert report.classes[0].num_pictures == 3


def test_left_out_is_counted_by_code_and_source_and_kept_whole():
    more = [
        LeftOut(picture="house:a.jpg", code="copy", reason="as wild:b.jpg"),
        LeftOut(picture="wild:48460", code="not_a_plant", reason="kingdom Animalia", num_pictures=12),
        LeftOut(picture="wild:rosa", code="no_pictures", reason="nothing there", num_pictures=0),
    ]
    report = make_report(left_out=LEFT_OUT + more)
    reasons = {reason.code: reason for reason in report.reasons}
    assert reasons["copy"].by_source == {"house": 1, "wild": 1}
    assert (reasons["not_a_plant"].num_entries, reasons["not_a_plant"].num_pictures) == (2, 13)
    assert sorted(report.left_out, key=repr) == sorted(LEFT_OUT + more, key=repr)
    assert report.num_left_out == len(MEANINGS) + 13
    assert {source.name: source.num_left_out for source in report.sources} == {"wild": len(MEANINGS) + 12, "house": 1}


def test_an_unknown_code_is_shown_too():
    report = make_report(left_out=[LeftOut(picture="wild:a.jpg", code="solar_flare", reason="too bright")])
    assert [(reason.code, reason.title) for reason in report.reasons] == [("solar_flare", UNKNOWN.title)]


def test_days_and_places_are_counted_for_each_source():
    wild, house = make_report().sources
    assert (wild.num_dated, wild.num_placed) == (2, 1)
    assert (wild.first_taken, wild.last_taken) == (date(2018, 7, 9), date(2020, 5, 1))
    assert (house.num_dated, house.first_taken) == (0, None)


def test_every_picture_is_in_one_bin_of_its_size():
    sides = [1, 2, 3, 255, 256, 257, 500, 4096, 10_000]
    report = make_report(
        pictures=[picture(f"{side}.jpg", side_px=side) for side in sides], splits=["train"] * len(sides)
    )
    expected, _ = np.histogram(sides, np.array(report.short_sides_px.edges) - 1e-6)
    assert report.short_sides_px.counts["wild"] == tuple(expected)
    assert sum(expected) == len(sides)
    assert set(report.short_sides_px.counts["house"]) == {0}


def test_the_median_is_of_the_short_side():
    assert [source.median_short_side_px for source in make_report().sources] == [450, 2000]


def test_a_file_name_that_is_not_utf8_does_not_fail_the_report():
    report = make_report(left_out=[LeftOut(picture="wild:\udcff.jpg", code="copy", reason="as wild:\udcfe.jpg")])
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report).left_out[0].picture == "wild:\\udcff.jpg"


def test_a_report_of_no_pictures_is_possible():
    report = make_report(pictures=[], splits=[])
    assert (report.num_pictures, report.short_sides_px.edges) == (0, ())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_million_and_more_pictures_are_counted_in_seconds():
    keys = [f"wild:genus{number}-a" for number in range(5337)]
    names = {key: f"Genus{number} a" for number, key in enumerate(keys)}
    shown = [picture(f"{number}.jpg", key) for number, key in enumerate(keys)]
    pictures = shown * 300
    gc.collect()
    started = time.perf_counter()
    none = {"names": NameFindings(), "licenses": {}}
    report = summarize(collection(), pictures, ["train"] * len(pictures), [], taxonomy(names), **none)
    assert time.perf_counter() - started < 20
    assert report.num_pictures == 1_601_100
    assert report.classes[0].num_pictures == 300
