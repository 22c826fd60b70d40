"""The page in a real browser: every state of an answer, narrow and wide, light and dark, by keyboard, without faults.

Run with Chromium and `pip install playwright axe-playwright-python`; `BOTANIFY_SCREENSHOTS=FOLDER` keeps pictures.
"""

import io
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.serving.web.examples import MODEL, SPECIES, STATES

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

ADDRESS = "http://botanify.test"
SCREENSHOTS = os.environ.get("BOTANIFY_SCREENSHOTS")
VIEWS = {
    "wide": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 320, "height": 700}, "color_scheme": "light"},
}


def photograph(color):
    stream = io.BytesIO()
    Image.new("RGB", (400, 300), color).save(stream, "JPEG")
    return stream.getvalue()


PHOTOGRAPHS = [
    {"name": f"{color}.jpg", "mimeType": "image/jpeg", "buffer": photograph(color)}
    for color in ("green", "red", "blue")
]


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium; install it, on Debian with `apt-get install chromium`")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright; `pip install playwright axe-playwright-python`"
    )
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A tab that shows the page, whose `/identify` and `/model` give hand-made answers."""

    def __init__(self, page, client):
        self.page, self.model, self.answer, self.asked, self.faults = page, MODEL, SPECIES, [], []
        page.on("console", lambda message: message.type == "error" and self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.route("**/*", lambda route: self._respond(route, client))
        page.goto(ADDRESS)

    def _respond(self, route, client):
        path = route.request.url.removeprefix(ADDRESS)
        assert path.startswith("/"), f"the page asks another host: {route.request.url}"
        if path == "/model":
            route.fulfill(json=self.model)
        elif path.startswith("/identify"):
            self.asked.append(route.request.post_data_buffer or b"")
            route.fulfill(json=self.answer)
        else:
            response = client.get(path)
            route.fulfill(status=response.status_code, headers=dict(response.headers), body=response.content)

    def show(self, answer):
        """Sends as many pictures as the answer tells of, and waits for the answer."""
        self.answer = answer
        self.page.set_input_files("#choose", PHOTOGRAPHS[: len(answer["images"])])
        self.page.wait_for_selector(".verdict")
        return self.page.inner_text("#answer")


@pytest.fixture
def open_tab(browser, client):
    contexts = []

    def open_one(view="wide"):
        contexts.append(browser.new_context(**VIEWS[view], reduced_motion="reduce"))
        return Tab(contexts[-1].new_page(), client)

    yield open_one
    for context in contexts:
        context.close()


def accessibility_faults(page):
    package = pytest.importorskip("axe_playwright_python", reason="needs axe; `pip install axe-playwright-python`")
    page.evaluate(next(Path(package.__file__).parent.glob("axe*.js")).read_text())
    # axe measures no contrast over a gradient; the card's gradient is only the stripe at its top.
    page.eval_on_selector_all(".verdict", "cards => cards.forEach((card) => { card.style.backgroundImage = 'none'; })")
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in found["violations"]]


def screenshot(page, name):
    if SCREENSHOTS:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("state", STATES)
def test_every_state_is_shown_without_faults(open_tab, state, view):
    tab = open_tab(view)
    assert tab.show(STATES[state])
    screenshot(tab.page, f"{state}-{view}")
    for folded in tab.page.query_selector_all("#answer details"):
        folded.evaluate("details => { details.open = true; }")
    assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page scrolls sideways"
    assert accessibility_faults(tab.page) == []
    assert tab.faults == []


def test_answer_is_told_to_screen_readers(open_tab):
    tab = open_tab()
    tab.show(STATES["not_a_plant"])
    assert tab.page.inner_text("#status").startswith("This does not look like a plant.")


def test_closest_plants_of_a_thing_are_folded_away(open_tab):
    tab = open_tab()
    tab.show(STATES["not_a_plant"])
    page = tab.page
    assert not page.is_visible("text=Helianthus annuus")
    page.focus("text=Show the closest plants all the same")
    page.keyboard.press("Enter")
    assert page.is_visible("text=Helianthus annuus")


def test_candidates_stand_under_one_of_these_four(open_tab):
    shown = open_tab().show(STATES["genus"])
    after = shown[shown.index("One of these four") :]
    assert after.index("Helianthus annuus") < after.index("Crocus vernus") < after.index("Highest scores")


def test_each_picture_has_its_share(open_tab):
    shown = open_tab().show(STATES["three_pictures"])
    assert "52%" in shown
    assert "This picture was not used: it does not look like a plant." in shown


def test_bundle_without_tables_is_shown_as_before(open_tab):
    shown = open_tab().show(STATES["no_tables"])
    assert "Closest candidates" in shown
    assert "One of these" not in shown
    assert "contributed" not in shown


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
    tab.show(SPECIES)
    assert b'name="coverage"' in tab.asked[0]
    assert b'name="taxa"' not in tab.asked[0]
    tab.page.focus("#choice-label")
    tab.page.keyboard.press("Enter")
    with tab.page.expect_response(lambda response: num_chosen(response) == 2):
        type_choice(tab.page, "Asteraceae")
        type_choice(tab.page, "asteraceae")
        wait_for_choice(tab.page, "Only Asteraceae")
        type_choice(tab.page, "daisy")
    wait_for_choice(tab.page, "Only Asteraceae or daisy")
    assert accessibility_faults(tab.page) == []
    screenshot(tab.page, "choice-open-narrow")
    with tab.page.expect_response(lambda response: num_chosen(response) == 1):
        tab.page.click("text=daisy >> button")
    assert tab.page.evaluate("document.activeElement.ariaLabel") == "Remove Asteraceae from your choice"
    assert tab.faults == []


def test_name_that_the_model_does_not_know_is_no_choice(open_tab):
    page = open_tab().page
    page.click("#choice-label")
    type_choice(page, "oak")
    page.wait_for_selector("text=This model cannot name 'oak'")
    type_choice(page, "list:garden")
    wait_for_choice(page, "Only list:garden")
    assert page.inner_text("#choice-message") == ""


def test_candidate_set_is_not_asked_of_a_model_without_its_table(open_tab):
    tab = open_tab()
    tab.model = {**MODEL, "calibration": None}
    tab.page.reload()
    tab.show(STATES["no_tables"])
    assert b'name="coverage"' not in tab.asked[0]


def test_choice_suggests_what_the_model_knows(open_tab):
    page = open_tab().page
    page.click("#choice-label")
    page.fill("#choice-name", "ros")
    page.wait_for_selector("#choice-suggestions option", state="attached")
    names = page.eval_on_selector_all("#choice-suggestions option", "options => options.map((option) => option.value)")
    assert names == ["Rosaceae", "Rosa", "Rosa canina", "Rosa rugosa"]
