"""The page as an app: its service worker, in a browser, and what the service sends for it."""

import json
import re
import shutil

import pytest

from serving import pages
from serving.app import create_app
from tests.serving.raw_http import serve
from tests.serving.tiny import InProcessDecoder
from tests.serving.web.conftest import WEB
from tests.serving.web.examples import MODEL, SPECIES
from tests.serving.web.tab import PHOTOGRAPHS, Tab
from tests.serving.web.test_text import CATALOGUES
from tests.waiting import wait_until


def constants_of(worker):
    return {
        name: json.loads(value) for name, value in re.findall(r"^const (VERSION|FILES) = (.+);$", worker, re.MULTILINE)
    }


# ---- what the service sends


def test_the_worker_is_asked_for_anew_and_works_for_the_whole_page(client):
    response = client.get("/web/worker.js")
    headers = response.headers
    assert headers["content-type"].startswith("text/javascript")
    assert (headers["service-worker-allowed"], headers["cache-control"]) == ("/", "no-cache")
    assert "last-modified" not in headers
    assert {"worker-src 'self'", "manifest-src 'self'"} <= set(headers["content-security-policy"].split("; "))


def test_the_worker_keeps_every_file_that_the_page_loads_and_no_answers(client):
    files = constants_of(client.get("/web/worker.js").text)["FILES"]
    assert {"/", "/web/plants.html", "/web/many.html", "/web/text/de.json", "/web/style.css"} <= set(files)
    assert {f"/web/{path.name}" for path in WEB.glob("*.js") if path.name not in {"worker.js", "schema.js"}} <= set(
        files
    )
    assert all(path == "/" or path.startswith("/web/") for path in files)
    assert all(client.get(path).status_code == 200 for path in files)


def test_the_manifest_names_icons_that_there_are(client):
    response = client.get("/web/manifest.webmanifest")
    assert response.headers["content-type"] == "application/manifest+json"
    icons = response.json()["icons"]
    assert [client.get(icon["src"]).headers["content-type"] for icon in icons] == [icon["type"] for icon in icons]


@pytest.fixture
def web(monkeypatch, tmp_path):
    """A copy of the page's files, which a test changes as an upgrade does."""
    shutil.copytree(WEB, tmp_path / "web", ignore=shutil.ignore_patterns("vendor"))
    monkeypatch.setattr(pages, "WEB", tmp_path / "web")
    read_anew()
    yield tmp_path / "web"
    read_anew()


def upgrade(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    read_anew()


def read_anew():
    pages._web_files.cache_clear()
    pages._catalogues.cache_clear()


@pytest.mark.parametrize("name", ["style.css", "index.html", "text/fr.json", "worker.js"])
def test_a_change_of_any_file_is_a_new_version(web, client, name):
    before = client.get("/web/worker.js")
    assert constants_of(before.text) == constants_of(client.get("/web/worker.js").text)
    upgrade(web / name, "", " ") if name != "text/fr.json" else upgrade(web / name, "Mes plantes", "Mes fleurs")
    after = client.get("/web/worker.js")
    assert constants_of(before.text)["VERSION"] != constants_of(after.text)["VERSION"]
    assert before.headers["etag"] != after.headers["etag"]


# ---- in a browser


class Site:
    """The page of a service behind a real socket, with answers that are made by hand."""

    def __init__(self, app):
        self.app, self.asked, self.is_down, self.key = app, [], False, None

    async def __call__(self, scope, receive, send):
        path = scope["path"]
        self.asked.append((scope["method"], path))
        key = dict(scope["headers"]).get(b"authorization", b"").decode()
        if self.is_down:
            await self._send(send, 502, {})
        elif path == "/identify":
            while (await receive()).get("more_body"):
                pass
            is_allowed = self.key in (None, key.removeprefix("Bearer "))
            answer = SPECIES | {"request_id": f"request-{len(self.asked)}"}
            await self._send(send, 200 if is_allowed else 401, answer if is_allowed else {})
        elif path == "/model":
            await self._send(send, 200, MODEL)
        else:
            await self.app(scope, receive, send)

    async def _send(self, send, status, content):
        body = json.dumps(content).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def site(settings):
    site = Site(create_app(settings, decoder=InProcessDecoder()).app)
    with serve(site) as (host, port):
        site.address = f"http://{host}:{port}"
        yield site


@pytest.fixture
def open_app(site, new_page):
    """Opens the page and waits until the worker has it."""

    def open_one(view="wide", **options):
        tab = Tab(new_page(view, service_workers="allow", **options), site.address)
        wait_until(lambda: tab.page.evaluate("navigator.serviceWorker.controller !== null"))
        return tab

    return open_one


def test_without_a_connection_a_reload_shows_the_plants_in_the_language_that_was_chosen(site, open_app):
    tab = open_app("phone", locale="de-DE")
    page = tab.page
    tab.choose(PHOTOGRAPHS[0])
    tab.see("Unter „Meine Pflanzen“ aufbewahrt")
    page.goto(f"{site.address}/web/plants.html")
    page.context.set_offline(True)
    page.reload()
    tab.see("1 Pflanze", exact=True)
    tab.unfold()
    page.wait_for_selector(".verdict")
    assert page.eval_on_selector(".plants__pictures img", "image => image.decode().then(() => image.naturalWidth)") > 0
    tab.assert_accessible()
    page.context.set_offline(False)
    page.get_by_role("link", name="Français").click()
    tab.see("1 plante", exact=True)
    kept = """caches.match("/").then((kept) => kept.text()).then((text) => text.includes('lang="fr"'))"""
    wait_until(lambda: page.evaluate(kept))
    page.context.set_offline(True)
    page.goto(site.address)
    assert page.inner_text("h1") == CATALOGUES["fr"]["intro.title"]
    tab.choose(PHOTOGRAPHS[1])
    assert CATALOGUES["fr"]["problem.gone"] in tab.problem_text()


def test_behind_a_gateway_without_its_service_the_page_opens_too(site, open_app):
    tab = open_app()
    site.is_down = True
    tab.page.goto(f"{site.address}/web/plants.html")
    tab.see("No plants yet")


def test_answers_never_pass_through_the_worker_and_keys_still_count(site, open_app):
    site.key = "secret"
    tab = open_app()
    through = []
    tab.page.on("response", lambda response: response.from_service_worker and through.append(response.url))
    tab.page.reload()
    tab.choose(PHOTOGRAPHS[0])
    assert "This service requires an API key" in tab.problem_text()
    tab.fill("API key", "secret", "Enter")
    tab.answer_text()
    assert [path for _, path in site.asked].count("/identify") == 2
    kept = tab.page.evaluate("""async () => {
        const names = await caches.keys();
        const requests = await Promise.all(names.map(async (name) => (await caches.open(name)).keys()));
        return requests.flat().map(({ url }) => url);
    }""")
    for addresses in (kept, through):
        paths = {address.removeprefix(site.address) for address in addresses}
        assert "/web/app.js" in paths
        assert all(path == "/" or path.startswith("/web/") for path in paths)


def test_a_new_version_replaces_all_that_was_kept_and_no_page_is_stale(web, site, open_app):
    tab = open_app()
    page = tab.page
    names = page.evaluate("caches.keys()")
    upgrade(web / "text" / "en.json", '"What plant is this?"', '"Which plant is this?"')
    page.reload()
    assert page.inner_text("h1") == "Which plant is this?"  # at once, and not after another reload
    wait_until(lambda: len(kept := page.evaluate("caches.keys()")) == 1 and kept != names)
    page.context.set_offline(True)
    page.reload()
    assert page.inner_text("h1") == "Which plant is this?"


def test_a_photograph_that_another_app_shares_is_identified(site, open_app):
    tab = open_app("phone")
    page = tab.page
    page.evaluate("""() => {
        const form = document.createElement("form");
        Object.assign(form, { id: "share", action: "/share", method: "post", enctype: "multipart/form-data" });
        form.innerHTML = '<input type="file" name="image" multiple>';
        document.body.append(form);
    }""")
    page.set_input_files("#share input", PHOTOGRAPHS[:2])
    page.evaluate("document.getElementById('share').submit()")
    tab.answer_text()
    assert page.url == f"{site.address}/"  # a reload does not look for them again
    assert page.evaluate("caches.has('botanify-shared')") is False
    assert page.locator(".tile").count() == 2
    assert page.locator(".tile").first.get_attribute("data-name") == "1.jpg"
    assert ("POST", "/share") not in site.asked
    page.goto(f"{site.address}/?shared")  # nothing is left there
    page.locator("#notice", has_text="The photograph that you shared did not arrive").wait_for()
    assert page.locator(".tile").count() == 0


def test_another_language_answers_about_the_photographs_that_were_chosen(open_app):
    tab = open_app()
    page = tab.page
    tab.choose(*PHOTOGRAPHS[:2])
    tab.answer_text()
    page.get_by_role("link", name="Deutsch").click()
    page.get_by_role("heading", name="Antwort", exact=True).wait_for()
    tab.answer_text()
    assert page.locator(".tile").count() == 2
    assert page.url.endswith("/")
    tab.see("aufbewahrt, nur auf diesem")
    page.reload()
    assert page.evaluate("document.documentElement.lang") == "de"  # the service remembers it
    page.get_by_role("link", name="Meine Pflanzen").click()
    tab.see("1 Pflanze")  # not one for each language


def test_browsers_find_no_fault_that_forbids_to_install_the_page(open_app):
    page = open_app().page
    devtools = page.context.new_cdp_session(page)
    found = {error["errorId"] for error in devtools.send("Page.getInstallabilityErrors")["installabilityErrors"]}
    assert found <= {"in-incognito"}  # as every tab of a test is
    manifest = devtools.send("Page.getAppManifest")
    assert manifest["errors"] == []
    assert '"share_target"' in manifest["data"]
