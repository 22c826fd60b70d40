"""The page says what an answer means, in sentences that the answer supports."""

import re

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import ranking as verdicts
from models.ranking import RankedGroup, RankedTaxon, Ranking
from models.taxonomy import Taxon
from tests.serving.web.examples import (
    CHOICE,
    GENUS,
    MODEL,
    NO_TABLES,
    NOT_A_PLANT,
    PROMISE,
    SPECIES,
    STATES,
    THREE_PICTURES,
    UNCERTAIN,
    UNKNOWN_PLANT,
    answer,
    before_issue,
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


def test_only_scientific_names_are_marked_for_italics(page):
    maize = {**predictions(0.9)[0], "scientific_name": "Maize", "genus": ""}
    daisy = predictions(0.9, 0.1)[1]
    assert page("sentences.js", "nameOf", maize) == "Maize"
    assert page("sentences.js", "nameOf", daisy) == {"name": "Bellis perennis"}
    found = answer(name="Maize", predictions=[maize, daisy])
    assert page("sentences.js", "verdictName", found) == "Maize"
    assert page("sentences.js", "verdictName", answer("genus", "Bellis", predictions=[daisy])) == {"name": "Bellis"}
    unsure = answer("uncertain", None, predictions=[maize, daisy])
    assert page("sentences.js", "verdictSentence", unsure, MODEL)[1:3] == [" The closest match is ", "Maize"]
    several = {**candidates(2), "taxa": [maize, daisy]}
    assert page("sentences.js", "alternativesSentence", answer(candidates=several))[1:4:2] == [
        "Maize",
        {"name": "Bellis perennis"},
    ]


# ---- the verdict


def test_promise_names_the_test_behind_it(say):
    told = say("trustSentence", SPECIES, MODEL)
    assert "812 plants were named by species, and 21 wrongly" in told
    assert "at most 5% of such names are wrong, with 95% confidence" in told


def test_promise_without_a_mistake_says_none(say):
    assert "and none wrongly" in say("trustSentence", answer(promise={**PROMISE, "num_wrong": 0}), MODEL)


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


def test_calibration_error_is_that_of_the_running_network(say):
    ece = {"name": "ece", "value": 0.08, "data": "flowers17, test split", "num_pictures": 272, "interval_95": None}
    told = say("measuredSentence", {**MODEL, "calibration": {**MODEL["calibration"], "ece": ece}})
    assert "8 percentage points" in told
    told = say("measuredSentence", {**MODEL, "calibration": {**MODEL["calibration"], "ece": None}})
    assert "percentage points" not in told


def test_figures_of_different_pictures_are_not_told_as_of_the_same(say):
    ece = {**MODEL["metrics"][1], "num_pictures": 300, "data": "gardens, test split"}
    told = say("measuredSentence", {**MODEL, "calibration": {**MODEL["calibration"], "ece": ece}})
    assert "On 272 pictures of flowers17, test split, the first name was right for 81%. On 300 pictures" in told
    assert "300 pictures of gardens, test split, scores were 3.4 percentage points" in told


@pytest.mark.parametrize(("num_pictures", "is_few"), [(153, True), (999, True), (1000, False)])
def test_few_calibration_pictures_are_said_to_be_few(say, num_pictures, is_few):
    told = say("measuredSentence", {**MODEL, "calibration": {**MODEL["calibration"], "num_pictures": num_pictures}})
    assert (f"Only {num_pictures} pictures calibrated the scores" in told) == is_few


def test_calibration_is_not_mentioned_without_its_error(say):
    assert "calibrated" not in say("measuredSentence", {**MODEL, "calibration": {**MODEL["calibration"], "ece": None}})


def test_figures_of_other_data_carry_a_caution(say):
    assert "may have been trained on" in say("measuredSentence", {**MODEL, "other_data": True})
    assert "may have been trained on" not in say("measuredSentence", MODEL)


@pytest.mark.parametrize("model", [None, {**MODEL, "metrics": [], "calibration": None}])
def test_nothing_is_claimed_of_a_model_without_figures(say, model):
    assert say("trustSentence", answer(), model) is None


def test_verdict_without_a_name_promises_nothing(say):
    for whole in (UNCERTAIN, UNKNOWN_PLANT, NOT_A_PLANT):
        assert say("trustSentence", whole, MODEL) is None


def test_genus_is_explained(say):
    assert say("verdictSentence", GENUS, MODEL) == "A species of the genus Helianthus; the species is not certain."


def test_unknown_plant_is_not_called_uncertain(page, say):
    assert page("sentences.js", "stateOf", UNKNOWN_PLANT) == "unknown_plant"
    assert page("sentences.js", "stateOf", UNCERTAIN) == "uncertain"
    heading = page("sentences.js", "verdictHeading", UNKNOWN_PLANT)
    assert heading["title"] == "A plant that this model does not seem to know"
    assert "unlike the 17 plants that the model knows" in say("verdictSentence", UNKNOWN_PLANT, MODEL)


def test_reason_of_the_service_for_an_unknown_plant_is_recognized(page):
    taxon = Taxon("bellis-perennis", "species", "Bellis perennis", "Bellis", "Asteraceae")
    verdict = msgspec.to_builtins(verdicts.unknown_plant(RankedTaxon(taxon, 0.4), familiarity=0.1, cutoff=0.3))
    assert page("sentences.js", "stateOf", {**UNCERTAIN, "verdict": verdict}) == "unknown_plant"
    ranking = Ranking([RankedTaxon(taxon, 0.4)], [RankedGroup("Bellis", 0.4)], [RankedGroup("Asteraceae", 0.4)])
    verdict = msgspec.to_builtins(verdicts.decide(ranking, verdicts.Thresholds(), verdicts.Promises()))
    assert page("sentences.js", "stateOf", {**UNCERTAIN, "verdict": verdict}) == "uncertain"


def test_not_a_plant_says_what_to_do(page, say):
    assert page("sentences.js", "verdictHeading", NOT_A_PLANT)["title"] == "This does not look like a plant"
    assert "fill the picture with a leaf or a flower" in say("verdictSentence", NOT_A_PLANT, MODEL)


def test_screen_reader_hears_the_verdict(say):
    assert say("announcement", SPECIES, MODEL) == "Species: Helianthus annuus, common sunflower, 98%."
    assert say("announcement", NOT_A_PLANT, MODEL).startswith("This does not look like a plant. If it is one")


# ---- candidates


def test_candidate_set_is_one_of_these_four(page):
    words = page("sentences.js", "candidateWords", GENUS)
    assert words["heading"] == "One of these four"
    assert words["explanation"] == (
        "Such lists held the right plant in 93% of cases (95% interval 89 to 95) on 272 pictures of flowers17, test "
        "split; 90% was asked."
    )


def test_coverage_that_was_not_measured_is_no_promise(page):
    whole = {**GENUS, "candidates": {**candidates(4), "measured": None}}
    told = page("sentences.js", "candidateWords", whole)["explanation"]
    assert told.startswith("Such a list is made to hold the right plant in 90% of cases, if the model knows the plant;")
    assert told.endswith("how often it does was not measured.")


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"description": "A demo of 17 flowers. Trained long.", "num_species": 124, "num_genera": 45},
         "A demo of 17 flowers. It knows 124 species and 45 genera."),
        ({"description": "", "num_species": 17, "num_genera": 0}, "It knows 17 species."),
        ({"description": "Roses.", "num_species": 0, "num_genera": 1}, "Roses. It knows 1 genus."),
    ],
)  # fmt: skip
def test_page_says_first_what_the_model_knows(page, model, told):
    assert page("sentences.js", "knownSentence", model) == told


def test_large_candidate_set_is_counted(page):
    assert page("sentences.js", "candidateWords", UNCERTAIN)["heading"] == "One of these 57"


def test_set_is_counted_although_the_service_lists_only_its_best(page, say):
    some = {**candidates(100), "num_taxa": 412}
    assert page("sentences.js", "candidateWords", {**UNCERTAIN, "candidates": some})["heading"] == "One of these 412"
    assert ", Tigridia pavonia and 407 more." in say("alternativesSentence", {**SPECIES, "candidates": some})


def test_set_of_one_is_said_so(page):
    whole = {**UNCERTAIN, "candidates": candidates(1)}
    assert page("sentences.js", "candidateWords", whole)["heading"] == "Only this plant is left"


def test_macro_guarantee_is_an_average_over_plants(page):
    whole = {**GENUS, "candidates": candidates(3, "macro")}
    assert "as an average over these plants" in page("sentences.js", "candidateWords", whole)["explanation"]


def test_set_without_a_guarantee_claims_none(page):
    explanation = page("sentences.js", "candidateWords", {**GENUS, "candidates": candidates(3, None)})["explanation"]
    assert "93% of the probability" in explanation
    assert "90%" not in explanation


def test_untested_plants_are_counted(page):
    whole = {**GENUS, "candidates": candidates(4, num_uncalibrated_taxa=12)}
    assert "12 plants that the model knows were not among those tested" in str(
        page("sentences.js", "candidateWords", whole)
    )


@pytest.mark.parametrize("whole", [SPECIES, UNKNOWN_PLANT, NOT_A_PLANT, NO_TABLES])
def test_set_is_not_offered_where_it_says_nothing(page, whole):
    assert page("sentences.js", "candidateWords", whole) is None


def test_species_has_one_line_about_the_other_candidates(say):
    assert say("alternativesSentence", SPECIES).startswith("No other plant is on the list of candidates.")
    told = say("alternativesSentence", {**SPECIES, "candidates": candidates(3)})
    assert told.startswith("Also possible: Bellis perennis and Primula veris.")
    assert say("alternativesSentence", GENUS) is None


def test_line_without_a_guarantee_only_names_the_candidates(say):
    assert say("alternativesSentence", CHOICE) == "Also possible: Bellis perennis."
    assert say("alternativesSentence", {**CHOICE, "candidates": candidates(1, None)}) is None


def test_long_line_of_candidates_is_cut(say):
    told = say("alternativesSentence", {**SPECIES, "candidates": candidates(12)})
    assert "Planta numero6" not in told
    assert ", Tigridia pavonia and seven more." in told


# ---- pictures and the choice of plants


def test_unused_picture_is_said_so(page):
    told = [page("sentences.js", "unusedSentence", image) for image in THREE_PICTURES["images"]]
    assert told == [None, "This picture was not used: it does not look like a plant.", None]


@pytest.mark.parametrize(
    ("mass", "words"), [(0.004, "almost no part"), (0.31, "31% of the probability"), (0.9, "most of the probability")]
)
def test_discarded_probability_is_put_into_words(say, mass, words):
    assert words in say("discardedSentence", {**CHOICE, "discarded_mass": mass})


def test_choice_of_plants_has_no_tested_score(say):
    assert "no test says how often" in say("trustSentence", CHOICE, MODEL)


def test_choice_is_named_by_its_control(say):
    assert say("choiceLabel", []) == "Only some plants (optional)"
    assert say("choiceLabel", ["Rosa", "Asteraceae", "daisy"]) == "Only Rosa, Asteraceae or daisy"


# ---- any answer


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("model", [None, MODEL], ids=["no model", "model"])
def test_page_claims_no_calibration_that_was_not_measured(page, name, model):
    assert not re.search(r"\b(eight|nine) in ten\b", " ".join(everything(page, STATES[name], model)))


@pytest.mark.parametrize("name", STATES)
def test_answer_of_the_first_interface_is_shown(page, name):
    assert all(everything(page, before_issue(STATES[name]), MODEL)[:1])


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
