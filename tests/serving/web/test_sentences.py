"""The page says what an answer means, in sentences that the answer supports."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving.web.examples import (
    CHOICE,
    GENUS,
    MODEL,
    NOT_A_PLANT,
    PROMISE,
    STATES,
    UNCERTAIN,
    UNKNOWN_PLANT,
    answer,
    candidates,
    picture,
    predictions,
)

# Node.js answers in under a millisecond, but a busy machine may take longer.
of_any_answer = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def say(page):
    """Calls a function of sentences.js and returns its sentence as text, or null."""

    def call(name, *args):
        sentence = page("sentences.js", name, *args)
        return sentence if sentence is None else page("sentences.js", "plainText", sentence)

    return call


def everything(page, whole, model):
    """Gives every text that the page derives from an answer."""
    names = ("verdictSentence", "trustSentence", "alternativesSentence", "discardedSentence", "announcement")
    told = [page("sentences.js", name, whole, model) for name in names]
    words = page("sentences.js", "candidateWords", whole) or {}
    texts = [page("sentences.js", "plainText", sentence) for sentence in told if sentence is not None]
    texts += [*words.values(), *page("sentences.js", "verdictHeading", whole).values()]
    texts += [page("sentences.js", "unusedSentence", image) or "" for image in whole["images"]]
    return [*texts, *page("advice.js", "adviceFor", whole)]


# ---- names


# ---- the verdict


def test_verdict_without_a_promise_says_what_was_measured(say):
    told = say("trustSentence", answer(), MODEL)
    assert "272 pictures of flowers17, test split" in told
    assert "right for 81%" in told
    assert "3.4 percentage points" in told
    assert "95% interval 2.1 to 6" in told


@pytest.mark.parametrize("error", [0.004, 0.16, 0.4])
def test_measured_error_is_the_one_of_the_model(say, error):
    model = {**MODEL, "calibration": None}
    model["metrics"] = [{**MODEL["metrics"][1], "value": error, "interval_95": None}]
    shown = float(re.search(r"([\d.]+) percentage points", say("measuredSentence", model))[1])
    assert shown == pytest.approx(error * 100, abs=0.5)


def test_figures_of_different_pictures_are_not_told_as_of_the_same(say):
    ece = {**MODEL["metrics"][1], "num_pictures": 300, "data": "gardens, test split"}
    told = say("measuredSentence", {**MODEL, "calibration": {**MODEL["calibration"], "ece": ece}})
    assert "On 272 pictures of flowers17, test split, the first name was right for 81%. On 300 pictures" in told
    assert "300 pictures of gardens, test split, scores were 3.4 percentage points" in told


@pytest.mark.parametrize("model", [None, {**MODEL, "metrics": [], "calibration": None}])
def test_nothing_is_claimed_of_a_model_without_figures(say, model):
    assert say("trustSentence", answer(), model) is None


def test_verdict_without_a_name_promises_nothing(say):
    for whole in (UNCERTAIN, UNKNOWN_PLANT, NOT_A_PLANT):
        assert say("trustSentence", whole, MODEL) is None


def test_unknown_plant_is_not_called_uncertain(page, say):
    assert page("sentences.js", "stateOf", UNKNOWN_PLANT) == "unknown_plant"
    assert page("sentences.js", "stateOf", UNCERTAIN) == "uncertain"
    heading = page("sentences.js", "verdictHeading", UNKNOWN_PLANT)
    assert heading["title"] == "A plant that this model does not seem to know"
    assert "unlike the 17 plants that the model knows" in say("verdictSentence", UNKNOWN_PLANT, MODEL)


# ---- candidates


def test_coverage_that_was_not_measured_is_no_promise(page):
    whole = {**GENUS, "candidates": {**candidates(4), "measured": None}}
    told = page("sentences.js", "candidateWords", whole)["explanation"]
    assert told.startswith("Such a list is made to hold the right plant in 90% of cases, if the model knows the plant;")
    assert told.endswith("how often it does was not measured.")


def test_set_without_a_guarantee_claims_none(page):
    explanation = page("sentences.js", "candidateWords", {**GENUS, "candidates": candidates(3, None)})["explanation"]
    assert "93% of the probability" in explanation
    assert "90%" not in explanation


# ---- pictures and the choice of plants


def test_choice_of_plants_has_no_tested_score(say):
    assert "no test says how often" in say("trustSentence", CHOICE, MODEL)


# ---- any answer


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("model", [None, MODEL], ids=["no model", "model"])
def test_page_claims_no_calibration_that_was_not_measured(page, name, model):
    assert not re.search(r"\b(eight|nine) in ten\b", " ".join(everything(page, STATES[name], model)))


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


@of_any_answer
@given(whole=answers(), model=st.sampled_from([None, MODEL]))
def test_sentences_are_whole(page, whole, model):
    for text in everything(page, whole, model):
        assert not re.search(r"undefined|null|NaN|\[object|  |\bInfinity", text), text
        assert not re.search(r"(?<!\.)\.\.(?!\.)|,\.| \.", text), text


@of_any_answer
@given(whole=answers())
def test_promise_is_told_only_where_the_answer_gives_one(page, whole):
    told = page("sentences.js", "trustSentence", whole, MODEL) or ""
    has_promise = whole["verdict"]["promise"] is not None and whole["verdict"]["name"] is not None
    assert ("confidence" in told) == has_promise
