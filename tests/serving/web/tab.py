"""A browser's tab with the page, for tests marked `browser`; they install nothing, and skip without what they need."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serving.tiny import BLUE, GREEN, RED, jpeg
from tests.serving.web.examples import MODEL, SPECIES

ADDRESS = "http://botanify.test"
SCREENSHOTS = os.environ.get("BOTANIFY_SCREENSHOTS")  # folder in which they are kept
VIEWS = {
    "wide": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 320, "height": 700}, "color_scheme": "light"},
    "phone": {"viewport": {"width": 360, "height": 664}, "color_scheme": "dark", "is_mobile": True, "has_touch": True},
}
PACKAGES = "python -m pip install playwright axe-playwright-python"


def file(name, content, kind="image/jpeg"):
    return {"name": name, "mimeType": kind, "buffer": content}


PHOTOGRAPHS = [
    file(f"{number}.jpg", jpeg(color, (400, 300))) for number, color in enumerate((GREEN, RED, BLUE, RED, GREEN), 1)
]


@contextmanager
def chromium():
    """Starts Debian's Chromium."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium; on Debian, install it with `apt-get install chromium`")
    playwright = pytest.importorskip("playwright.sync_api", reason=f"needs Playwright; install it with `{PACKAGES}`")
    with (
        playwright.sync_playwright() as started,
        started.chromium.launch(executable_path=path, args=["--no-sandbox"]) as browser,
    ):
        yield browser


class Tab:
    """A tab that shows the page of a service at an address."""

    def __init__(self, page, address=ADDRESS):
        self.page = page
        self.prepare()
        page.goto(address)

    def prepare(self):
        """Does what must be done before the page loads."""

    def choose(self, *files):
        """Chooses pictures, on the page for one plant or on the one for many."""
        self.page.set_input_files("#choose, #files", list(files))

    def see(self, words, **options):
        """Waits until these words are shown, in one place."""
        self.page.get_by_text(words, **options).wait_for()

    def press(self, name):
        """Clicks the button of that name."""
        self.page.get_by_role("button", name=name).click()

    def fill(self, label, text, key):
        """Writes into a field, and presses a key there."""
        field = self.page.get_by_label(label)
        field.fill(text)
        field.press(key)

    def unfold(self, position=0):
        """Opens the row of an answer in a list."""
        self.page.locator("summary.many__line").nth(position).click()

    def answer_text(self):
        """Waits for an answer and returns its words."""
        self.page.wait_for_selector(".verdict")
        return self.page.inner_text("#answer")

    def problem_text(self):
        """Waits for a problem and returns its words."""
        self.page.wait_for_selector(".note--error.problem")
        return self.page.inner_text("#answer")

    def screenshot(self):
        """Keeps the screen under the name of the test and a number, if a folder is given."""
        if SCREENSHOTS:
            folder = Path(SCREENSHOTS)
            folder.mkdir(parents=True, exist_ok=True)
            test = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].split()[0]
            self.page.screenshot(path=folder / f"{test}-{len(list(folder.iterdir()))}.png", full_page=True)

    def assert_accessible(self):
        """Checks that axe finds no fault, and that nobody has to scroll sideways (WCAG 2.2, 1.4.10)."""
        self.screenshot()
        package = pytest.importorskip("axe_playwright_python", reason=f"needs axe; install it with `{PACKAGES}`")
        self.page.evaluate(next(Path(package.__file__).parent.glob("axe*.js")).read_text())
        # axe measures no contrast over a gradient; the card's gradient is only the stripe at its top.
        self.page.eval_on_selector_all(
            ".verdict", "cards => cards.forEach((card) => { card.style.backgroundImage = 'none'; })"
        )
        found = self.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        faults = [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in found]
        assert faults == [], faults
        assert not self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"), "scrolls sideways"


class StagedTab(Tab):
    """A tab whose `/identify` and `/model` are made by hand; all else comes from the service in this process."""

    def __init__(self, page, client):
        self.client, self.model, self.answer, self.asked = client, MODEL, SPECIES, []
        self.failures = []  # of the next requests: each is called with the route, in place of an answer
        super().__init__(page)

    def prepare(self):
        self.page.route("**/*", self._respond)

    def _respond(self, route):
        path = route.request.url.removeprefix(ADDRESS)
        assert path.startswith("/"), f"the page asks another host: {route.request.url}"
        if path == "/model":
            route.fulfill(json=self.model)
        elif path == "/identify":
            self.asked.append(route.request.post_data_buffer or b"")
            if self.failures:
                self.failures.pop(0)(route)
            else:
                route.fulfill(json=self.answer)
        else:
            response = self.client.get(path)
            route.fulfill(status=response.status_code, headers=dict(response.headers), body=response.content)

    def show(self, answer):
        """Sends as many pictures as the answer tells of, and waits for the answer."""
        self.answer = answer
        self.choose(*PHOTOGRAPHS[: len(answer["images"])])
        return self.answer_text()
