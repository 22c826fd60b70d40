"""The report: what is counted, what is advised, and what the page shows of hostile names."""

import gc
import json
import time
from datetime import date
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.taxonomy import Output, Taxon, Taxonomy
from tests.training.dataset.labeled import picture as labeled
from training.dataset.audit.licenses import LicenseSummary
from training.dataset.audit.near_copies import NearGroups
from training.dataset.classes import Classes, NameFinding, NameFindings
from training.dataset.collection import Collection, SourceEntry
from training.dataset.report.findings import MEANINGS, Report, build_report
from training.dataset.report.page import HTML_FILE, JSON_FILE, advice, render_page, report_files
from training.dataset.selection import Selection
from training.dataset.sources.record import LeftOut, SourceClass
from training.dataset.splits import draw_splits

ROSE, IRIS, CROCUS = "wild:rosa-alba", "wild:iris-lutea", "house:crocus"
NAMES = {ROSE: "Rosa × alba", IRIS: "Iris lutea", CROCUS: "Crocus"}
LEFT_OUT = [
    *(
        LeftOut(picture=f"wild:<b>{code}</b>/x & 'y'.jpg", code=code, reason=f"because of <i>{code}</i>")
        for code in (*MEANINGS, "<solar flare>")
    ),
    LeftOut(picture="house:a.jpg", code="copy", reason="as wild:b.jpg"),
    LeftOut(picture="wild:48460", code="not_a_plant", reason="kingdom Animalia", num_pictures=12),
    LeftOut(picture="wild:rosa", code="no_pictures", reason="nothing there", num_pictures=0),
]


def picture(path="a.jpg", label=ROSE, side_px=500, num_bytes=1000, **record):
    source = label.partition(":")[0]
    plant = SourceClass(class_id=label, name=NAMES.get(label, label))
    facts = {"num_bytes": num_bytes, "width": 2 * side_px, "height": side_px}
    return labeled(f"{source}:{path}", label, plant, facts, **record)


PICTURES = [
    picture("rose/1.jpg", taken_on=date(2020, 5, 1), coordinates=(50.0, 8.0)),
    picture("rose/2.jpg", taken_on=date(2018, 7, 9)),
    picture("rose/3.jpg", side_px=300),
    picture("iris/1.jpg", IRIS, side_px=400),
    picture("crocus/1.jpg", CROCUS, side_px=2000, num_bytes=2_000_000),
]
SPLITS = ["train", "train", "test", "train", "validation"]


def collection(**rules):
    sources = {
        "wild": SourceEntry(layout="inaturalist", root=Path("wild"), note="May not be <sold>."),
        "house": SourceEntry(layout="image_folder", root=Path("house")),
    }
    return Collection(**{"name": "Small & green", "sources": sources, "few_pictures": 2} | rules)


def taxonomy(names=None):
    names = NAMES if names is None else names
    taxa = {key.partition(":")[2]: name for key, name in names.items()}
    return Taxonomy(
        taxonomy_version="test",
        taxa=tuple(
            Taxon(taxon_id=id_, rank="species", scientific_name=name, genus=name.split()[0])
            for id_, name in taxa.items()
        ),
        outputs=tuple(
            Output(key=key, source=key.partition(":")[0], taxon_id=key.partition(":")[2]) for key in sorted(names)
        ),
    )


def make_report(pictures=PICTURES, splits=SPLITS, left_out=LEFT_OUT, rules=None, **findings):
    names = NameFindings(
        merged=(NameFinding(name="Rosa alba", members=("wild: Rosa alba L.", "house: <Rose>"), explanation="synonym"),),
        genus_level=(NameFinding(name="Crocus", members=("house: Crocus spp.",)),),
        similar=(NameFinding(name="Iris lutea", members=("wild: Iris luteus",)),),
    )
    licenses = {
        "wild": LicenseSummary(
            commercial_use="not_allowed", sentence="May not be used commercially.", licenses={"CC BY-NC": 3, "": 1}
        )
    }
    counted = count(rules or collection(), taxonomy(), pictures, splits, left_out)
    return msgspec.structs.replace(counted, **{"names": names, "licenses": licenses} | findings)


def count(rules, taxa, pictures, splits, left_out=()):
    """The report on pictures without near copies."""
    single = np.full(len(pictures), -1)
    near = NearGroups(group_of=single, num_chained=0, chained=single >= 0, any_name=single)
    selection = Selection(pictures, groups=single, group_names=[], taxonomy=taxa, left_out=[])
    classes = Classes(taxonomy=taxa, labels={})
    return build_report(rules, classes, pictures, near, selection, splits=splits, left_out=left_out)


def test_small_classes_are_listed():
    assert [size.key for size in make_report(rules=collection(few_pictures=3)).few] == [CROCUS, IRIS]
    assert len(make_report(rules=collection(few_pictures=4)).few) == 3
    assert make_report(rules=collection(few_pictures=0)).few == ()


def test_a_file_name_that_is_not_utf8_does_not_fail_the_report():
    report = make_report(left_out=[LeftOut(picture="wild:\udcff.jpg", code="copy", reason="as wild:\udcfe.jpg")])
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report).left_out[0].picture == "wild:\\udcff.jpg"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_million_and_more_pictures_are_counted_in_seconds():
    keys = [f"wild:genus{number}-a" for number in range(5337)]
    names = {key: f"Genus{number} a" for number, key in enumerate(keys)}
    shown = [picture(f"{number}.jpg", key) for number, key in enumerate(keys)]
    pictures = shown * 300
    gc.collect()
    started = time.perf_counter()
    report = count(collection(), taxonomy(names), pictures, ["train"] * len(pictures))
    assert time.perf_counter() - started < 20
    assert report.num_pictures == 1_601_100
    assert report.classes[0].num_pictures == 300


def named(*names):
    return make_report(names=NameFindings(common=tuple(NameFinding(name=name) for name in names)))


def test_classes_that_were_joined_or_name_no_species_are_told():
    joined = tuple(NameFinding(name=f"Rosa {number}", members=("s: Dog", "s: Briar")) for number in range(101))
    genera = tuple(NameFinding(name=f"Rosa sp. {number}") for number in range(101))
    one, other, *_ = advice(make_report(names=NameFindings(joined=joined, genus_level=genera)))
    assert one.startswith("Several classes of one source became one taxon: 101 (Rosa 0 = s: Dog = s: Briar, Rosa 1 = ")
    assert other.startswith("Classes that name no species, and so count for their genus: 101 (Rosa sp. 0, ")
    assert one.endswith(", Rosa 99 = s: Dog = s: Briar and 1 more).")
    assert other.endswith(", Rosa sp. 99 and 1 more).")


def of_size(number, share=0.1, **record):
    """The report on one class with so many pictures, each of its own plant."""
    pictures = [picture(f"rose/{each}.jpg", **record) for each in range(number)]
    names = [str(each) for each in range(number)]
    splits = draw_splits(
        pictures, np.arange(number), names, {"test": 0.0, "validation": share, "calibration": 0.0}, seed=0
    )
    return make_report(pictures, splits, rules=collection(validation_share=share), names=NameFindings())


def test_names_that_are_no_plants_are_counted_and_ten_are_shown():
    (sentence,) = [each for each in advice(named(*"abcdefghijkl")) if "read as plants" in each]
    assert "have no genus: 12 (a, b, c, d, e, f, g, h, i, j and 2 more). " in sentence
    (sentence,) = [each for each in advice(named("Maize")) if "read as plants" in each]
    assert "have no genus: 1 (Maize). " in sentence
    assert "Common (Scientific)" in sentence


@given(st.integers(2, 30))
def test_the_share_that_is_advised_gives_the_class_a_validation_picture(number):
    sentences = advice(of_size(number))
    if number >= 6:
        assert sentences == []
        return
    (sentence,) = sentences
    assert f"too small for a validation picture, with their training pictures: 1 (Rosa × alba {number}). " in sentence
    share = float(sentence.partition("--validation-share ")[2].partition(" ")[0])
    assert advice(of_size(number, share)) == []


def test_a_class_with_one_picture_needs_another():
    (sentence,) = advice(of_size(1))
    assert sentence.endswith("(Rosa × alba 1). A class needs two pictures or more for that.")


def test_no_share_helps_where_the_data_set_publishes_its_validation_split():
    published = [picture(f"iris/{each}.jpg", "wild:iris-lutea", split="validation") for each in range(2)]
    report = make_report([*PICTURES, *published], ["train"] * len(PICTURES) + ["validation"] * 2, names=NameFindings())
    assert report.sources[0].published == ("validation",)
    (sentence,) = advice(report)
    assert "1 (Crocus 1)" in sentence


def test_page_and_json_are_the_stored_ones_in_which_what_a_data_set_wrote_is_text():
    """Those of `make_report`, which were looked at; write them anew when the report or its template changes."""
    report = make_report(two_names=(("wild:a.jpg (Rosa alba)", "wild:b.jpg (Iris lutea)"),))
    files = report_files(report)
    for name in (HTML_FILE, JSON_FILE):
        assert files[name] == Path(__file__).with_name(f"test_{name}").read_bytes()
    assert msgspec.json.decode(files[JSON_FILE], type=Report) == report


def test_a_long_list_is_cut_on_the_page_and_whole_in_json():
    many = [LeftOut(picture=f"wild:{number:04}.jpg", code="copy", reason="as another") for number in range(450)]
    files = report_files(make_report(left_out=many))
    shown = files[HTML_FILE].decode()
    assert "wild:0199.jpg" in shown
    assert "wild:0200.jpg" not in shown
    assert "The first 200 of 450 entries" in shown
    assert len(json.loads(files[JSON_FILE])["left_out"]) == 450


def test_a_clean_collection_has_a_page_too():
    shown = render_page(make_report(left_out=[], licenses={}))
    assert "every picture of the sources is used" in shown
    assert "Nothing is known of its licenses" in shown
