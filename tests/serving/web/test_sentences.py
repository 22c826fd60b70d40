"""The page says what an answer means, in sentences that the answer supports."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.model_card import CalibrationFacts, ModelCard, UploadLimits
from serving.schemas import Identification, PlaceUse
from tests.serving.web.examples import (
    CHOICE,
    ECE,
    GENUS,
    HARMFUL,
    MODEL,
    NOT_A_PLANT,
    PROMISE,
    STATES,
    TWO_PLANTS,
    UNCERTAIN,
    UNKNOWN_PLANT,
    answer,
    candidates,
    picture,
    prediction,
    predictions,
)


def plain(sentence):
    """The text of a sentence."""
    parts = sentence if isinstance(sentence, list) else [sentence]
    return "".join(part["name"] if isinstance(part, dict) else part for part in parts)


@pytest.fixture
def say(page):
    """Calls a function of sentences.js and returns its sentence as text, or null."""

    def call(name, *args):
        sentence = page("sentences.js", name, *args)
        return sentence if sentence is None else plain(sentence)

    return call


def everything(page, whole, model):
    """Gives every text that the page derives from an answer."""
    names = ("verdictSentence", "trustSentence", "choiceSentence", "announcement")
    told = [page("sentences.js", name, whole, model) for name in names]
    told += [page("sentences.js", "foreignNamesSentence", model)]
    told += page("sentences.js", "verdictHeading", whole).values()
    told += [
        page("sentences.js", name, image) for image in whole["images"] for name in ("unusedSentence", "aloneSentence")
    ]
    words = page("sure.js", "candidateWords", whole) or {"heading": "", "sentences": []}
    told += [words["heading"], *words["sentences"], page("sure.js", "discardedSentence", whole)]
    told += [*page("sure.js", "trustFigures", whole, model), *page("advice.js", "adviceFor", whole)]
    return [plain(sentence) for sentence in told if sentence is not None]


# ---- the verdict


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("no_prior", "The place does not count: this model knows nothing about where plants grow."),
        ("no_records", "The place does not count: this model has no records near it that tell plants apart."),
        ("cultivated", None),  # the page sends no such request, and has no words of its own
    ],
)
def test_a_place_that_was_sent_and_not_used_is_said_once(page, say, code, sentence):
    place = msgspec.to_builtins(PlaceUse.of(code))
    whole = answer(place=place, warnings=[place["reason"], "Another thing was ignored."])
    assert say("placeSentence", whole) == sentence
    told = ["Another thing was ignored."] if sentence else whole["warnings"]
    assert page("sentences.js", "otherWarnings", whole) == told


def test_a_place_that_counts_or_was_not_sent_needs_no_sentence(page, say):
    older = answer()
    del older["place"]
    for whole in (older, answer(), answer(place=msgspec.to_builtins(PlaceUse.of("used")))):
        assert say("placeSentence", whole) is None
        assert page("sentences.js", "otherWarnings", {**whole, "warnings": ["One."]}) == ["One."]


@pytest.mark.parametrize("error", [0.004, 0.16, 0.4])
def test_measured_error_is_the_one_of_the_model(page, error):
    model = {**MODEL, "calibration": None}
    model["metrics"] = [{**ECE, "value": error, "interval_95": None}]
    told = page("sure.js", "measuredSentences", model)
    shown = float(re.search(r"([\d.]+) percentage points", told[0])[1])
    assert shown == pytest.approx(error * 100, abs=0.5)


def with_ece(ece):
    """Gives the model with this calibration error of the network that runs."""
    return {**MODEL, "calibration": {**MODEL["calibration"], "ece": ece}}


def test_each_figure_tells_its_own_pictures(page):
    ece = {**ECE, "num_pictures": 300, "data": "gardens, test split"}
    right, distance, _ = page("sure.js", "measuredSentences", with_ece(ece))
    assert right == "On 272 pictures of flowers17, test split, the first name was right for 81%."
    assert distance.startswith("On 300 pictures of gardens, test split, scores were 3.4 percentage points")


@pytest.mark.parametrize("model", [None, {**MODEL, "metrics": [], "calibration": None}])
def test_nothing_is_claimed_of_a_model_without_figures(page, model):
    assert page("sure.js", "trustFigures", answer(), model) == []


def test_a_name_is_as_good_as_what_was_proved_and_else_a_guess(page, say):
    for max_risk, share in ((0.05, "19 of 20"), (0.1, "9 of 10"), (0.03, "97 of 100")):
        whole = answer(promise={**PROMISE, "max_risk": max_risk})
        assert say("trustSentence", whole) == f"Right in about {share} such answers."
    assert say("trustSentence", answer()).startswith("This is a guess")
    assert page("sentences.js", "verdictHeading", answer())["label"] == "A guess"


def test_verdict_without_a_name_promises_nothing(say):
    for whole in (UNCERTAIN, UNKNOWN_PLANT, NOT_A_PLANT):
        assert say("trustSentence", whole) is None


def test_unknown_plant_is_not_called_uncertain(page, say):
    assert page("sentences.js", "stateOf", UNKNOWN_PLANT) == "unknown_plant"
    assert page("sentences.js", "stateOf", UNCERTAIN) == "uncertain"
    heading = page("sentences.js", "verdictHeading", UNKNOWN_PLANT)
    assert heading["title"] == "A plant that this model does not seem to know"
    assert "unlike the 17 plants that the model knows" in say("verdictSentence", UNKNOWN_PLANT, MODEL)


# ---- harm, and several plants


def test_what_may_harm_is_said_first_with_the_name_that_people_know(page, say):
    assert page("sentences.js", "harmSentences", HARMFUL) == ["May be Poison ivy: do not touch it."]
    assert say("announcement", HARMFUL, MODEL).startswith("May be Poison ivy: do not touch it. Your plant: ")
    assert page("sentences.js", "harmSentences", answer()) == []


def test_the_card_of_an_answer_begins_with_what_may_harm(page):
    steps = """
      const { showAnswer } = await load("answer.js");
      return showAnswer(args[0], args[1], [])[0].children.slice(0, 2).map((line) => [line.className, line.textContent]);
    """
    harm, rank = page.evaluate(steps, HARMFUL, MODEL)
    assert harm == ["verdict__harm", "May be Poison ivy: do not touch it."]
    assert rank == ["verdict__rank", "Your plant"]


def test_pictures_of_different_plants_get_no_common_name(page, say):
    assert page("sentences.js", "stateOf", TWO_PLANTS) == "contradictory"
    named = TWO_PLANTS | {"verdict": answer(promise=PROMISE)["verdict"]}
    assert page("sentences.js", "verdictHeading", named)["title"] == "Your pictures show different plants"
    assert say("trustSentence", named) is None
    assert [say("aloneSentence", image) for image in named["images"]] == [
        "by itself: probably Common sunflower",
        "by itself: probably Cowslip",
    ]


def test_pictures_that_agree_or_say_little_do_not_contradict_each_other(page):
    agreeing = picture(1, 0.5, 0.9)
    unclear = picture(1, 0.5, 0.9, best=3)
    unclear["predictions"][0]["score"] = 0.4
    unused = picture(1, 0.0, 0.1, best=3)
    for other in (agreeing, unclear, unused):
        whole = answer(images=[picture(0, 0.5, 0.9), other])
        assert page("sentences.js", "stateOf", whole) == "species"


def test_one_picture_that_may_show_two_plants_is_asked_for_again(page):
    for other, are_of_two_families in ((3, True), (2, False)):
        two = answer("uncertain", None, 0.5, predictions=[prediction(1, 0.45), prediction(other, 0.4)])
        advice = page("advice.js", "adviceFor", two)
        assert ("each plant by itself, if the picture shows two" in advice) == are_of_two_families


def test_photographs_are_not_blamed_for_a_model_made_from_few(page, say):
    unsure = answer("uncertain", None, 0.5)
    none = {"species": None, "genus": None, "family": None}
    few = {"promises": none, "calibration": {"num_plants": 24}}
    assert page("advice.js", "adviceFor", unsure, few) == []
    assert "made from few photographs" in say("verdictSentence", unsure, few)
    for other in (
        few | {"promises": none | {"species": {}}},
        few | {"calibration": {"num_plants": 5000}},
        few | {"calibration": None},
    ):
        assert len(page("advice.js", "adviceFor", unsure, other)) > 0
        assert "made from few photographs" not in say("verdictSentence", unsure, other)


def test_a_thing_is_called_no_plant(page):
    assert page("sentences.js", "verdictHeading", NOT_A_PLANT) == {
        "label": "No plant", "title": "This does not look like a plant", "latin": None,
    }  # fmt: skip


# ---- candidates


def test_a_list_without_the_name_is_not_shown_under_it(page):
    assert page("sure.js", "candidateWords", answer()) is not None
    assert page("sure.js", "candidateWords", answer(name="Rosa canina")) is None
    assert page("sure.js", "candidateWords", GENUS) is not None
    assert page("sure.js", "candidateWords", answer("genus", "Rosa", candidates=candidates(4))) is None


def test_coverage_that_was_not_measured_is_no_promise(page):
    whole = {**GENUS, "candidates": {**candidates(4), "measured": None}}
    told = " ".join(page("sure.js", "candidateWords", whole)["sentences"])
    assert told.startswith("Such a list is made to hold the right plant in 90% of cases, if the model knows the plant;")
    assert told.endswith("how often it does was not measured.")


def test_set_without_a_guarantee_claims_none(page):
    explanation = " ".join(page("sure.js", "candidateWords", {**GENUS, "candidates": candidates(3, None)})["sentences"])
    assert "93% of the probability" in explanation
    assert "90%" not in explanation


# ---- pictures and the choice of plants


def test_choice_of_plants_has_no_tested_score(page):
    assert "no test says how often" in " ".join(page("sure.js", "trustFigures", CHOICE, MODEL))


# ---- any answer


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("model", [None, MODEL], ids=["no model", "model"])
def test_page_counts_right_answers_only_where_they_were_proved(page, name, model):
    is_proved = STATES[name]["verdict"]["promise"] is not None
    assert bool(re.search(r"\d+ of \d+ such answers", " ".join(everything(page, STATES[name], model)))) == is_proved


@st.composite
def answers(draw):
    """Any answer that the interface allows."""
    share = st.floats(0, 1)
    rank = draw(st.sampled_from(["species", "genus", "family", "uncertain", "not_a_plant"]))
    name = None if rank in {"uncertain", "not_a_plant"} else "Helianthus annuus"
    num_pictures, num_candidates = draw(st.integers(1, 5)), draw(st.integers(0, 30))
    guarantee = draw(st.sampled_from([None, "marginal", "macro"]))
    some = {**candidates(max(num_candidates, 1), guarantee, draw(st.integers(0, 9))), "score": draw(share)}
    some["taxa"] = some["taxa"][:num_candidates]
    sides = st.integers(1, 9000)
    return answer(
        rank, name, draw(share), draw(st.sampled_from(["a reason", UNKNOWN_PLANT["verdict"]["reason"]])),
        promise=draw(st.sampled_from([None, PROMISE])),
        predictions=predictions(*draw(st.lists(share, max_size=5))),
        candidates=draw(st.sampled_from([None, some])),
        discarded_mass=draw(st.none() | share),
        images=[
            picture(index, draw(share), draw(st.none() | share), draw(st.integers(1, 4)),
                    (draw(sides), draw(sides)))
            for index in range(num_pictures)
        ],
    )  # fmt: skip


@given(whole=answers(), model=st.sampled_from([None, MODEL]), language=st.sampled_from(["en", "de", "fr", "es"]))
def test_sentences_are_whole(page_in, language, whole, model):
    for text in everything(page_in(language), whole, model):
        assert not re.search(r"undefined|null|NaN|\[object|  |\bInfinity", text), text
        assert not re.search(r"(?<!\.)\.\.(?!\.)|,\.| \.", text), text


def test_calibration_error_is_the_one_of_the_network_that_runs(page):
    ece = {**ECE, "value": 0.08, "interval_95": None}
    right, distance = page("facts.js", "measuredFacts", with_ece(ece))
    assert distance["name"] == "Average distance of the scores from the share of right names"
    assert distance["text"].startswith("8 percentage points, on")
    assert page("facts.js", "measuredFacts", with_ece(None)) == [right]


def test_a_genus_without_species_is_no_fault_of_the_photographs(page, say):
    of_genus = prediction(1, 0.98) | {"rank": "genus", "scientific_name": "Helianthus"}
    whole = answer("genus", "Helianthus", promise=PROMISE, predictions=[of_genus])
    heading = page("sentences.js", "verdictHeading", whole)
    assert (heading["title"], plain(heading["latin"])) == ("Common sunflower", "Genus Helianthus")
    assert say("verdictSentence", whole, MODEL) == "The model knows this plant by its genus alone."
    assert page("advice.js", "adviceFor", whole, MODEL) == []
    assert "by itself" in say("verdictSentence", whole | {"images": TWO_PLANTS["images"]}, MODEL)
    assert "or a close relative" in page("sentences.js", "verdictHeading", GENUS)["title"]  # the model knows species
    assert len(page("advice.js", "adviceFor", GENUS, MODEL)) > 0


@pytest.mark.parametrize("promises", [{}, {"species": None, "genus": None, "family": None}])
def test_nothing_is_proved_of_a_model_without_tables(page, promises):
    assert page("facts.js", "provedFacts", {**MODEL, "calibration": None, "promises": promises}) == []


@pytest.mark.parametrize(
    ("score", "text"), [(0.0004, "<0.1%"), (0.9996, ">99%"), (1, "100%"), (0, "0%"), (0.034, "3.4%"), (0.5, "50%")]
)
def test_percentage_is_never_rounded_to_certainty(page, score, text):
    assert page("formats.js", "percent", score) == text


LIMITS = MODEL["limits"]


@pytest.fixture(scope="session")
def refused(page):
    return lambda *sizes, limits=LIMITS: page("limits.js", "refusal", [{"size": size} for size in sizes], limits)


def test_limits_that_are_not_known_refuse_nothing(refused):
    assert refused(10**12, limits=None) is None


@given(sizes=st.lists(st.integers(1, 30_000_000), min_size=1, max_size=5))
def test_only_what_is_over_a_limit_is_refused(refused, sizes):
    problem = refused(*sizes)
    assert (problem is not None) == (max(sizes) > 20_000_000 or sum(sizes) > 60_000_000 - 20_000)
    assert problem is None or problem["canRetry"] is False


@given(limit=st.integers(1_000, 10**9), excess=st.integers(1, 10**6))
def test_size_that_is_shown_is_over_the_limit_that_is_shown(refused, limit, excess):
    detail = refused(limit + excess, limits={**LIMITS, "picture_bytes": limit})["detail"]
    found = re.findall(r"([\d.]+) ([kM])B", detail.replace(",", ""))
    shown = [float(number) * {"k": 1e3, "M": 1e6}[unit] for number, unit in found]
    assert shown[0] > shown[1]


sides = st.integers(1, 60_000)


def test_photograph_of_a_phone_has_1600_px_at_its_longest(page):
    assert page("shrink.js", "fitted", {"width": 3024, "height": 4032}) == {"width": 1200, "height": 1600}


@given(width=sides, height=sides)
def test_proportions_stay_and_no_side_grows(page, width, height):
    fitted = page("shrink.js", "fitted", {"width": width, "height": height})
    assert max(fitted.values()) == min(1600, max(width, height))
    assert 1 <= fitted["width"] <= width
    assert 1 <= fitted["height"] <= height
    scale = max(fitted.values()) / max(width, height)
    assert fitted["width"] == pytest.approx(width * scale, abs=1)
    assert fitted["height"] == pytest.approx(height * scale, abs=1)


@pytest.mark.parametrize("state", STATES)
def test_answer_has_exactly_the_fields_of_the_interface(state):
    whole = STATES[state]
    assert msgspec.json.decode(msgspec.json.encode(msgspec.convert(whole, Identification))) == whole


def test_description_of_the_model_has_fields_of_the_interface():
    assert MODEL.keys() <= set(ModelCard.__struct_fields__)
    assert MODEL["calibration"].keys() == set(CalibrationFacts.__struct_fields__)
    assert MODEL["limits"].keys() == set(UploadLimits.__struct_fields__)
