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
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A tab that shows the page of a service at an address."""

    def __init__(self, page, address=ADDRESS):
        self.page, self.faults = page, []
        page.on("console", lambda message: message.type == "error" and self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.prepare()
        page.goto(address)

    def prepare(self):
        """Does what must be done before the page loads."""

    def choose(self, *files):
        self.page.set_input_files("#choose", list(files))

    def answer_text(self):
        """Waits for an answer and returns its words."""
        self.page.wait_for_selector(".verdict")
        return self.page.inner_text("#answer")

    def problem_text(self):
        """Waits for a problem and returns its words."""
        self.page.wait_for_selector(".note--error.problem")
        return self.page.inner_text("#answer")


class StagedTab(Tab):
    """A tab whose `/identify` and `/model` are made by hand; all else comes from the service in this process."""

    def __init__(self, page, client):
        self.client, self.model, self.answer, self.asked = client, MODEL, SPECIES, []
        self.refusals, self.is_held = [], False  # of the next requests: (status, code, Retry-After); never answered
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
            self._identify(route)
        else:
            response = self.client.get(path)
            route.fulfill(status=response.status_code, headers=dict(response.headers), body=response.content)

    def _identify(self, route):
        if self.is_held:
            return
        if not self.refusals:
            route.fulfill(json=self.answer)
            return
        problem, headers = self.refusals.pop(0)
        route.fulfill(status=problem["status"], json=problem, headers=headers)

    def show(self, answer):
        """Sends as many pictures as the answer tells of, and waits for the answer."""
        self.answer = answer
        self.choose(*PHOTOGRAPHS[: len(answer["images"])])
        return self.answer_text()


def accessibility_faults(page):
    package = pytest.importorskip("axe_playwright_python", reason=f"needs axe; install it with `{PACKAGES}`")
    page.evaluate(next(Path(package.__file__).parent.glob("axe*.js")).read_text())
    # axe measures no contrast over a gradient; the card's gradient is only the stripe at its top.
    page.eval_on_selector_all(".verdict", "cards => cards.forEach((card) => { card.style.backgroundImage = 'none'; })")
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in found["violations"]]


def scrolls_sideways(page):
    return page.evaluate("document.documentElement.scrollWidth > window.innerWidth")


def screenshot(page, name):
    if SCREENSHOTS:
        Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)
