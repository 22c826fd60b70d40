"""The page in Node.js, for its functions that need no document, and in a browser."""

import json
import shutil
import subprocess
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.serving.program import service
from tests.serving.web.tab import VIEWS, StagedTab, Tab, chromium

WEB = Path(__file__).resolve().parents[3] / "serving" / "web"

NO_CONNECTION = ("ERR_INTERNET_DISCONNECTED", "ERR_SOCKET_NOT_CONNECTED")  # the second while it is being lost

# Reads one call a line, writes one result a line; undefined becomes null.
DRIVER = """
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
globalThis.document = { documentElement: { lang: process.argv[2] } };
globalThis.fetch = async (path) => new Response(readFileSync(path.replace("/web/", "./")));
for await (const line of createInterface({ input: process.stdin })) {
  const [file, name, args] = JSON.parse(line);
  let result;
  try {
    result = { value: (await import(`./${file}`))[name](...args) ?? null };
  } catch (error) {
    result = { error: String(error.stack) };
  }
  console.log(JSON.stringify(result));
}
"""


def pytest_collection_modifyitems(items):
    """A test that opens the browser has the mark for it."""
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker("browser")


class Page:
    """The modules of the page in a Node.js process."""

    def __init__(self, process):
        self._process = process

    def __call__(self, file, name, *args):
        """Calls an exported function of a file with JSON values, and returns its JSON value."""
        self._process.stdin.write(json.dumps([file, name, args]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Node.js ended with {self._process.wait()}"
        result = json.loads(line)
        assert "error" not in result, result["error"]
        return result["value"]


@pytest.fixture(scope="session")
def page_in(tmp_path_factory):
    """Gives the page in a language."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js 18 or later; install it, on Debian with `apt-get install nodejs`")
    folder = tmp_path_factory.mktemp("page")
    for module in WEB.glob("*.js"):
        shutil.copy(module, folder)
    shutil.copytree(WEB / "text", folder / "text")
    (folder / "package.json").write_text('{"type": "module"}')  # without it, Node.js takes .js for CommonJS
    (folder / "driver.mjs").write_text(DRIVER)
    with ExitStack() as stack:

        @cache
        def start(language):
            command = [node, folder / "driver.mjs", language]
            return Page(
                stack.enter_context(
                    subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                )
            )

        yield start


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
