"""What the page decides and says without a document: each call of decisions.json with what it gives."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.model_card import CalibrationFacts, ModelCard, UploadLimits
from serving.schemas import Identification
from tests.serving.web.examples import HARMFUL, MODEL, SPECIES, STATES, filled, like

STORED = json.loads(Path(__file__).with_name("decisions.json").read_text(encoding="utf-8"))
SAYS = "stateOf verdictHeading trustSentence choiceSentence verdictSentence discardedSentence trustFigures"


@pytest.mark.parametrize("row", STORED["decisions"], ids=lambda row: row["fact"])
def test_a_decision_is_the_stored_one(page, row):
    file, name, *args = row["call"]
    assert page(file, name, *filled(args)) == filled(row["gives"])


def card_of(page, whole, model):
    told = {name: page("sentences.js", name, whole, model) for name in SAYS.split()}
    told["harmSentences"] = page("sentences.js", "harmSentences", whole)
    told["adviceFor"] = page("advice.js", "adviceFor", whole, model)
    told["unusedSentence"] = [page("sentences.js", "unusedSentence", image) for image in whole["images"]]
    return told


@pytest.mark.parametrize("state", STATES)
def test_the_card_of_every_state_is_the_stored_one(page, state):
    assert card_of(page, STATES[state], MODEL) == STORED["states"][state]


def texts_in(told):
    """All texts in a value, however deep."""
    if isinstance(told, dict | list):
        return [text for each in (told.values() if isinstance(told, dict) else told) for text in texts_in(each)]
    return [told] if isinstance(told, str) else []


@st.composite
def answers(draw):
    """Any answer that the interface allows."""
    share = st.floats(0, 1)
    rank = draw(st.sampled_from(["species", "genus", "family", "uncertain", "not_a_plant"]))
    taxa = STATES["uncertain"]["candidates"]["taxa"]
    candidates = {"taxa": taxa[: draw(st.integers(0, 30))]}
    images = [
        SPECIES["images"][0]
        | {"index": index, "plant_score": draw(st.none() | share), "weight": draw(share)}
        | {"width": draw(st.integers(1, 9000)), "height": draw(st.integers(1, 9000)), "predictions": taxa[index:]}
        for index in range(draw(st.integers(1, 5)))
    ]
    return like(
        "species",
        verdict={
            "rank": rank,
            "name": None if rank in {"uncertain", "not_a_plant"} else "Helianthus annuus",
            "score": draw(share),
            "promise": draw(st.sampled_from([None, SPECIES["verdict"]["promise"]])),
        },
        predictions=[each | {"score": draw(share)} for each in taxa[: draw(st.integers(0, 5))]],
        candidates=draw(st.sampled_from([None, candidates])),
        discarded_mass=draw(st.none() | share),
        images=images,
    )


@given(whole=answers(), model=st.sampled_from([None, MODEL]), language=st.sampled_from(["en", "de", "fr", "es"]))
def test_sentences_are_whole(page_in, language, whole, model):
    page = page_in(language)
    more = page("sentences.js", "announcement", whole, model), page("sentences.js", "foreignNamesSentence", model)
    for text in texts_in([card_of(page, whole, model), *more]):
        assert not re.search(r"undefined|null|NaN|\[object|  |\bInfinity", text), text
        assert not re.search(r"(?<!\.)\.\.(?!\.)|,\.| \.", text), text


def test_the_card_begins_with_what_is_likely_to_harm_and_ends_with_what_cannot_be_ruled_out(page):
    steps = """
      const { showAnswer } = await load("answer.js");
      return showAnswer(...args, [])[0].children.map((line) => [line.className, line.textContent]);
    """
    harm, rank, *_, harms, _, _, _, aside = page.evaluate(steps, like("probable", harmful=HARMFUL["harmful"]), MODEL)
    assert harm == ["verdict__harm", "May be Poison ivy: do not touch it."]
    assert rank == ["verdict__rank", "Probably"]
    assert harms[1].startswith("Can irritate the skinleaves, pollen: Handling it can give a rash")
    assert aside == ["verdict__aside", "Monkshood cannot be ruled out: deadly if eaten."]


def test_the_card_asks_about_a_picture_that_looks_different_and_leaves_it_out(page):
    steps = """
      const { showAnswer } = await load("answer.js");
      const left = [];
      const shown = (leaveOut) => showAnswer(...args, [], null, leaveOut)[0].children.find(
        (line) => line.textContent.startsWith("Picture"));
      const asked = shown((index) => left.push(index));
      asked.children.at(-1).onclick();
      return [asked.textContent, left, shown(null).textContent];
    """
    asked, left, told = page.evaluate(steps, STATES["different"], MODEL)
    assert (asked, left, told) == ("Picture 2 looks different. Leave it out", [1], "Picture 2 looks different. ")


def test_a_plant_is_offered_by_name_only_where_it_is_likely(page):
    steps = """
      const { correction } = await load("correct.js");
      const [{ verdict, predictions: [best], ...whole }] = args;
      const answer = (rank, score) => ({ ...whole, verdict: { ...verdict, rank }, predictions: [{ ...best, score }] });
      const shown = (...changes) => correction(answer(...changes), { corrections: { days: 9 } }, []).textContent;
      return [shown("uncertain", 0.3), shown("uncertain", 0.29), shown("species", 0.2)].map(
        (text) => [text.includes("Common sunflower"), text.endsWith("It is another plant:Send")]);
    """
    assert page.evaluate(steps, SPECIES) == [[True, True], [False, True], [True, True]]


def test_a_picture_is_blurred_if_no_part_of_it_is_sharp(page):
    steps = """
      const { sharpness } = await load("shrink.js");
      const [width, height] = [500, 400];
      let seed = 1;
      const noise = Float32Array.from({ length: width * height }, () => (seed = (seed * 16807) % 2147483647) % 256);
      const smooth = (gray, step) => gray.map(
        (value, at) => (gray.at(at - step) + 2 * value + gray[(at + step) % gray.length]) / 4);
      const blurred = (gray, n) => Array.from({ length: n }).reduce((each) => smooth(smooth(each, 1), width), gray);
      const sharp = blurred(noise, 1);
      const soft = blurred(sharp, 8); // half a squared px each time: as by 4 of 1000 px
      const part = soft.map((value, at) => (at % width < 200 && at < 200 * width ? sharp[at] : value));
      const rgba = (gray) => Uint8Array.from({ length: 4 * gray.length }, (_, at) => gray[Math.floor(at / 4)]);
      const all = [sharp, part, soft, new Float32Array(width * height)];
      const found = all.map((gray) => sharpness(rgba(gray), width, height));
      return [found.map((value) => value > 100), found];
    """
    are_sharp, found = page.evaluate(steps)
    assert are_sharp == [True, True, False, True], found  # the last one shows nothing


def test_the_guesses_have_percentages_unless_the_plant_is_unknown(page):
    steps = """
      const { guessList } = await load("lists.js");
      const [probable, three, unknown, { harmful }] = args;
      const predictions = three.predictions.slice(0, 4).map((each) => ({ ...each, score: 0.015 }));
      const rare = { ...three, predictions, harmful };
      return [guessList(probable, "uncertain"), guessList(rare, "uncertain"), guessList(unknown, "unknown_plant")].map(
        (list) => list.all.filter((part) => part.className === "candidate__score").map((part) => part.textContent));
    """
    shown = page.evaluate(steps, *(STATES[name] for name in ("probable", "one_of_three", "unknown_plant", "harmful")))
    assert shown == [["31%", "25%", "20%"], ["1.5%", "1.5%", "1.5%", "13%"], []]  # that of a plant that is warned of


def test_look_alikes_stand_beside_each_other_with_a_line_each_and_the_harm_of_a_double(page):
    steps = """
      const { differenceList } = await load("lists.js");
      const heic = { ...args[0], differences: args[1], images: [{ preview: "data:small" }] };
      const { all } = differenceList(heic, [new File([], "1.heic")]);
      const { attributes } = all.find((each) => each.attributes.alt === "Your photograph");
      return [differenceList(heic, []).textContent, differenceList(args[0], []), attributes.src];
    """
    harm = {"taxon": "Conium", "kind": "eaten", "severity": "deadly", "parts": "all", "line": "Kills.", "source": "A"}
    row = {"one": "Helianthus annuus", "other": "Conium maculatum", "line_one": "yellow", "line_other": "white"}
    shown, nothing, own = page.evaluate(steps, SPECIES, [row | {"source": "a flora", "other_harms": [harm]}] * 4)
    assert shown.count("Common sunflowerHelianthus annuusyellowConium maculatumDeadly if eaten") == 3
    assert shown.count("all: Kills. (A)white" + "a flora") == 3
    assert (nothing, own) == (None, "data:small")


def test_the_plants_that_a_search_lists_have_their_names(fresh_page):
    steps = """
      const { setUpSpeciesSearch } = await load("about.js");
      globalThis.fetch = async () => new Response(JSON.stringify({ species: args }));
      setUpSpeciesSearch();
      document.getElementById("species-query").value = "sun";
      document.getElementById("species-form").dispatchEvent(new Event("submit"));
      await new Promise((resolve) => { setTimeout(resolve, 20); });
      return document.getElementById("species-list").textContent;
    """
    assert fresh_page.evaluate(steps, *SPECIES["predictions"][::4]) == (
        "Common sunflowerHelianthus annuus · AsteraceaeTigridia pavoniaIridaceae"
    )


@pytest.mark.parametrize("state", STATES)
def test_an_example_has_exactly_the_fields_of_the_interface(state):
    whole = STATES[state]
    assert msgspec.json.decode(msgspec.json.encode(msgspec.convert(whole, Identification))) == whole
    assert MODEL.keys() <= set(ModelCard.__struct_fields__)
    assert MODEL["calibration"].keys() == set(CalibrationFacts.__struct_fields__)
    assert MODEL["limits"].keys() == set(UploadLimits.__struct_fields__)
