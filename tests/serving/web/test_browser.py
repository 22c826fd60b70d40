"""The page in a real browser: every state of an answer, narrow and wide, light and dark, without faults."""

import re

import pytest

from tests.serving.tiny import TAXA
from tests.serving.web.examples import HARMFUL, SPECIES, STATES
from tests.serving.web.tab import PHOTOGRAPHS, VIEWS


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("state", STATES)
def test_every_state_is_shown_without_faults(open_tab, state, view):
    tab = open_tab(view)
    assert tab.show(STATES[state])
    tab.screenshot()
    tab.page.eval_on_selector_all("#answer details", "all => all.forEach((details) => { details.open = true; })")
    tab.assert_accessible()


def is_green(color):
    """Whether a computed color is more green than red."""
    red, green, _ = (int(part) for part in re.findall(r"\d+", color)[:3])
    return green > red


@pytest.mark.parametrize("view", ["phone", "wide", "dark"])
def test_harm_stands_above_the_name_and_nothing_around_it_is_green(open_tab, view):
    tab = open_tab(view)
    tab.show(HARMFUL)
    told, name = (tab.page.locator(f".verdict__{part}") for part in ("harm", "name"))
    assert told.inner_text() == "May be Poison ivy: do not touch it."
    assert told.bounding_box()["y"] < name.bounding_box()["y"]
    color = "(element, name) => getComputedStyle(element)[name]"
    for selector, style in (
        (".verdict__harm", "backgroundColor"),
        (".verdict__harm", "color"),
        (".verdict__rank", "color"),
    ):
        assert not is_green(tab.page.eval_on_selector(selector, color, style)), selector


def type_choice(page, text):
    page.focus("#choice-name")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def wait_for_choice(page, label):
    page.wait_for_selector(f"#choice-label:text-is('{label}')")


def num_chosen(response):
    return (response.request.post_data_buffer or b"").count(b'name="taxa"')


def test_choice_of_plants_is_made_by_keyboard_and_sent(open_tab):
    tab = open_tab("narrow")
    page = tab.page
    tab.show(SPECIES)
    assert b'name="coverage"' in tab.asked[0]
    assert b'name="taxa"' not in tab.asked[0]
    page.focus("#choice-label")
    page.keyboard.press("Enter")
    with page.expect_response(lambda response: num_chosen(response) == 2):
        type_choice(page, "Asteraceae")
        type_choice(page, "asteraceae")
        wait_for_choice(page, "Only Asteraceae")
        type_choice(page, "daisy")
    wait_for_choice(page, "Only Asteraceae or daisy")
    tab.assert_accessible()
    with page.expect_response(lambda response: num_chosen(response) == 1):
        page.click("text=daisy >> button")
    assert page.evaluate("document.activeElement.ariaLabel") == "Remove Asteraceae from your choice"


@pytest.mark.parametrize("num_pictures", [1, 5])
@pytest.mark.parametrize("state", STATES)
def test_verdict_stands_in_the_first_screen_of_a_phone(open_tab, state, num_pictures):
    tab = open_tab("phone")
    tab.show({**STATES[state], "images": SPECIES["images"] * num_pictures})
    shown = [tab.page.query_selector(f".verdict__{part}") for part in ("name", "trust")]
    bottoms = [part.bounding_box()["y"] + part.bounding_box()["height"] for part in shown if part]
    assert tab.page.evaluate("window.scrollY") == 0
    assert max(bottoms) <= VIEWS["phone"]["viewport"]["height"]


def test_back_leaves_the_answer_and_not_the_page(open_tab):
    tab = open_tab("phone")
    page = tab.page
    tab.show(SPECIES)
    page.click("[href='#species']")
    page.go_back()
    assert page.is_visible("#answer")
    page.go_back()
    assert [page.is_visible(part) for part in ("#answer", ".tile")] == [False, True]
    page.go_forward()
    assert page.is_visible("#answer")


def tab_to(page, selector):
    """Presses Tab until an element has the focus."""
    for _ in range(60):
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab never reaches {selector}")


def test_page_is_used_with_the_keyboard_alone(open_tab):
    tab = open_tab()
    page = tab.page
    # Tells Chromium in time: the listener of the next lines may come after the key.
    page.on("filechooser", lambda _chooser: None)
    tab_to(page, "#choose")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(PHOTOGRAPHS[:2])
    tab.answer_text()
    tab_to(page, "#answer summary")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")
    page.focus("body")
    tab_to(page, ".tile__remove")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.ariaLabel") == "Remove picture 1, 2.jpg"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "choose"
    assert page.is_hidden("#answer")


def test_first_minute_needs_no_picture_and_no_mouse(open_tab):
    tab = open_tab("narrow")
    page = tab.page
    page.wait_for_selector("#example:visible")
    assert page.inner_text("#knows") == "Names 17 flowers. It knows 16 species and 1 genus. See all 17 plants"
    tab_to(page, "#knows-list")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"#species-list li:nth-child({len(TAXA)})")
    page.reload()
    page.wait_for_selector("#example:visible")
    tab_to(page, "#example")
    page.keyboard.press("Enter")
    tab.answer_text()
    assert page.evaluate("document.activeElement.id") == "choose"
    assert b"\xff\xd8\xff" in tab.asked[0]
    tab.assert_accessible()
