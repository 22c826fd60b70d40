"""Answers with a place and a day: from the request or from the picture, if that is asked for, and never otherwise."""

import numpy as np
import pytest
from PIL import ExifTags, Image

from models.bundle_record import MeasuredCoverage
from models.place import PlaceRule
from models.ranking import Thresholds
from tests.serving.conftest import ready_service
from tests.serving.tiny import GREEN, TAXA, assert_problem, identify, jpeg, post, scores, tables
from training.bundling.place import Records, count_records

BERLIN, SYDNEY = (52.5, 13.4), (-33.9, 151.2)
SUMMER, WINTER = "2026-06-15", "2026-12-15"
# Rosa canina grows in Berlin, and the daisy in winter; Rosa rugosa in Sydney. Nothing is known of the others.
PRIOR = count_records(
    Records(
        *(
            np.array(column)
            for column in zip(*([(0, *BERLIN, 6)] * 60 + [(2, *BERLIN, 12)] * 9 + [(1, *SYDNEY, 1)] * 60), strict=True)
        )
    ),
    len(TAXA),
    10.0,
)
RULE = PlaceRule(1.0, 0.05, 1.0, Thresholds())


@pytest.fixture(scope="module")
def client(sealed):
    with ready_service(bundle=sealed(place=(PRIOR, RULE)), plantnet_api=True) as client:
        yield client


def at(place, **more):
    return {"latitude": str(place[0]), "longitude": str(place[1]), **more}


def prior_of_rose(answer):
    return next(each["prior"] for each in answer["predictions"] if each["taxon_id"] == "rosa-canina")


def best(answer):
    return answer["predictions"][0]["taxon_id"]


def photograph(place, day=None):
    """A picture with the place and the day in its EXIF data."""
    exif = Image.Exif()
    if day is not None:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"{day.replace('-', ':')} 12:00:00"
    gps = exif.get_ifd(ExifTags.IFD.GPSInfo)
    for value, tag, reference, signs in (
        (place[0], ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLatitudeRef, "NS"),
        (place[1], ExifTags.GPS.GPSLongitude, ExifTags.GPS.GPSLongitudeRef, "EW"),
    ):
        gps[tag], gps[reference] = (abs(value), 0.0, 0.0), signs[value < 0]
    return jpeg(exif=exif)


def test_a_place_changes_the_answer_and_both_opinions_are_shown(client):
    plain, there = identify(client), identify(client, **at(SYDNEY))
    assert (best(plain), best(there)) == ("rosa-canina", "rosa-rugosa")
    assert (plain["uses_place"], there["uses_place"]) == (False, True)
    assert (plain["place"], there["place"]["used"], there["place"]["code"]) == (None, True, "used")
    assert plain["predictions"][0]["prior"] is None
    assert_both_opinions(there, plain)
    assert "Place or season decided: of 60 plant records" in there["verdict"]["reason"]
    unknown = next(each for each in there["predictions"] if each["taxon_id"] == "crocus")
    assert unknown["prior"] == 1


def assert_both_opinions(there, plain):
    vision = scores(plain)
    both = [each for each in there["predictions"] if each["taxon_id"] in vision]
    assert both
    for each in both:
        assert each["vision_score"] == pytest.approx(vision[each["taxon_id"]])
        assert 0.05 <= each["prior"] <= 20


@pytest.mark.parametrize("more", [{}, {"taxa": "Rosa"}])
def test_each_picture_shows_both_opinions_too(client, more):
    plain, there = (identify(client, jpeg(), jpeg(GREEN), **where, **more)["images"] for where in ({}, at(SYDNEY)))
    for without, placed in zip(plain, there, strict=True):
        assert_both_opinions(placed, without)
        assert {each["vision_score"] for each in without["predictions"]} == {None}


def test_no_measured_coverage_is_shown_with_a_place_since_none_was_measured_with_places(start, sealed):
    measured = MeasuredCoverage("marginal", 0.9, 0.93, 1280, "colors, test split")
    client = start(bundle=sealed(calibration=tables(), place=(PRIOR, RULE), coverages=(measured,)))
    plain, there = (identify(client, coverage="0.9", **where)["candidates"] for where in ({}, at(BERLIN)))
    assert (plain["guarantee"], plain["measured"]["covered"]) == ("marginal", 0.93)
    assert (there["guarantee"], there["measured"]) == ("marginal", None)


@pytest.mark.parametrize(
    ("parameters", "code", "ignored"),
    [
        ({}, None, None),
        ({"cultivated": "true"}, None, None),
        (at(SYDNEY, cultivated="true"), "cultivated", None),
        (
            {"date": SUMMER},
            "date_without_place",
            "The parameter 'date' was ignored: a day counts with a place only.",
        ),
        (
            {"use_exif": "true", "date": SUMMER},
            "no_place_in_exif",
            "The parameter 'use_exif' was ignored: no picture has a place in its EXIF data.",
        ),
        (
            at((0, -140), date=SUMMER),
            "no_records",
            "Place and date were ignored: this model has no records there that tell plants apart.",
        ),
    ],
)
def test_without_a_place_nothing_changes_and_what_was_ignored_is_said(client, parameters, code, ignored):
    plain, found = identify(client), identify(client, **parameters)
    assert found.pop("warnings") == ([] if ignored is None else [ignored])
    told = found.pop("place")
    assert (told and (told["used"], told["code"])) == (code and (False, code))
    assert ignored in (None, told and told["reason"])
    del plain["warnings"], plain["place"]
    assert found | {"request_id": ""} == plain | {"request_id": ""}


def test_the_place_of_a_picture_counts_only_if_that_is_asked_for(client):
    picture = photograph(SYDNEY)
    assert best(identify(client, picture)) == "rosa-canina"
    assert best(identify(client, picture, use_exif="true")) == "rosa-rugosa"
    assert best(identify(client, picture, use_exif="true", cultivated="true")) == "rosa-canina"
    beside = identify(client, picture, use_exif="true", **at(BERLIN))
    assert best(beside) == "rosa-canina"
    assert beside["warnings"] == ["The parameter 'use_exif' was ignored: the request names a place."]
    assert identify(client, photograph((0, -140)), use_exif="true")["place"]["code"] == "no_records"


def test_the_day_of_the_request_wins_over_that_of_a_picture(client):
    picture = photograph(BERLIN, WINTER)
    summer, winter = (prior_of_rose(identify(client, **at(BERLIN, date=day))) for day in (SUMMER, WINTER))
    assert summer > winter
    assert prior_of_rose(identify(client, picture, use_exif="true")) == winter
    assert prior_of_rose(identify(client, picture, use_exif="true", date=SUMMER)) == summer


@pytest.mark.parametrize(
    "parameters",
    [
        {"latitude": "52"},
        {"longitude": "13"},
        at((90.5, 0)),
        at((0, -180.5)),
        at(("nan", 0)),
        at(("1e1", 0)),
        at(BERLIN, date="31.12.2026"),
        at(BERLIN, date="2026-02-30"),
        {"use_exif": "perhaps"},
    ],
)
def test_a_place_that_is_none_is_a_problem(client, parameters):
    assert_problem(post(client, params=parameters), 422, "bad_parameter")


@pytest.mark.parametrize(("query", "form"), [("latitude", "longitude"), ("longitude", "latitude")])
def test_one_coordinate_may_be_in_the_query_and_the_other_in_the_form(client, query, form):
    def ask(fields):
        return post(client, data=fields, params={query: place[query]})

    place = at(SYDNEY)
    both = ask({form: place[form]})
    assert both.status_code == 200, both.text
    assert both.json()["predictions"] == identify(client, **place)["predictions"]
    assert ask({query: "1", form: place[form]}).json()["predictions"] == both.json()["predictions"]
    for fields in ({}, {query: place[query]}, {form: "181"}, {query: "181", form: place[form]}):
        assert_problem(ask(fields), 422, "bad_parameter")


@pytest.mark.parametrize("place", [(90, 0), (-90, 180), (0, -180)])
def test_the_ends_of_the_world_are_places(client, place):
    assert identify(client, **at(place))["place"]["code"] == "no_records"


def test_no_place_is_in_the_log_or_the_metrics(client, capsys):
    identify(client, photograph(SYDNEY), use_exif="true", **at((12.3456, 65.4321)))
    said = capsys.readouterr()
    for text in (said.out, said.err, client.get("/metrics").text):
        assert "12.34" not in text
        assert "65.43" not in text
        assert "151.2" not in text


def test_the_model_card_says_what_the_model_knows_of_places(client):
    card = client.get("/model").json()
    assert card["place"] == {"num_records": 129, "num_unknown_taxa": 2, "most_lowered": 0.05}
    assert (card["uses_place"], "records of where" in card["uses_place_reason"]) == (True, True)


def test_a_model_without_a_prior_says_that_it_ignores_the_place(settings):
    with ready_service(bundle=settings.bundle) as client:
        for parameters in (at(SYDNEY), {"date": SUMMER}, {"use_exif": "true"}):
            answer = identify(client, **parameters)
            assert (best(answer), answer["uses_place"]) == ("rosa-canina", False)
            sentence = "Place and date were ignored: this model has no prior of place."
            assert answer["warnings"] == [sentence]
            assert answer["place"] == {"used": False, "code": "no_prior", "reason": sentence}
        card = client.get("/model").json()
        assert (card["place"], card["uses_place"]) == (None, False)
        assert card["uses_place_reason"].endswith("without records of places, so place and date are ignored.")
