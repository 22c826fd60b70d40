"""The page as an app: its service worker, in a browser, and what the service sends for it."""

import json
import re
import shutil
from urllib.parse import urljoin

import pytest

from serving.app import create_app
from serving.plugins import page as pages
from tests.make import from_table
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
    assert (headers["service-worker-allowed"], headers["cache-control"]) == ("../", "no-cache")
    assert "last-modified" not in headers
    assert {"worker-src 'self'", "manifest-src 'self'"} <= set(headers["content-security-policy"].split("; "))


def test_the_worker_keeps_every_file_that_the_page_loads_and_no_answers(client):
    version, files = constants_of(client.get("/web/worker.js").text).values()
    assert {"/", "/web/plants.html", "/web/many.html", "/web/text/de.json", "/web/style.css"} <= set(files)
    assert {f"/web/{path.name}" for path in WEB.glob("*.js") if path.name not in {"worker.js", "schema.js"}} <= set(
        files
    )
    assert all(path == "/" or path.startswith("/web/") for path in files)
    for path in files:
        first = client.get(path)
        again = client.get(path, headers={"if-none-match": first.headers["etag"]})
        assert [(each.status_code, each.headers["page-version"]) for each in (first, again)] == [
            (200, version),
            (304, version),  # else a browser takes a file that no upgrade changed for one of the version before
        ], path


def test_the_manifest_names_icons_that_there_are(client):
    response = client.get("/web/manifest.webmanifest")
    assert response.headers["content-type"] == "application/manifest+json"
    icons = response.json()["icons"]
    found = [client.get(urljoin("/web/", icon["src"])).headers["content-type"] for icon in icons]
    assert found == [icon["type"] for icon in icons]


# ---- behind a path, which a proxy strips


def addresses_in(text):
    """The addresses in HTML or in a manifest, but for those of the fragments and languages of a page itself."""
    named = re.findall(r"""(?:href|src|spec-url|start_url|scope|action)["]?[=:] ?"([^"#?]*)""", text)
    return {address for address in named if address}


@pytest.mark.parametrize(
    "page", ["/", "/web/many.html", "/web/plants.html", "/web/manifest.webmanifest", "/schema", "/schema/"]
)
def test_every_address_of_a_page_stays_behind_the_path_of_a_proxy(client, page):
    found = {urljoin(f"/plants{page}", address) for address in addresses_in(client.get(page).text)}
    assert len(found) > 2
    assert {address for address in found if not address.startswith("/plants/")} == set()
    missing = {address for address in found if client.get(address.removeprefix("/plants")).status_code != 200}
    assert missing == ({"/plants/share"} if "manifest" in page else set())  # the worker answers it


def test_documents_and_their_redirects_stay_behind_the_path_of_a_proxy(client):
    for address in ("/docs", "/docs/", "/openapi.json"):
        place = client.get(address, follow_redirects=False).headers["location"]
        page = "/plants/schema" if "docs" in address else "/plants/schema/openapi.json"
        assert urljoin(f"/plants{address}", place) == page
    servers = client.get("/schema/openapi.json").json()["servers"]
    assert [urljoin("/plants/schema/openapi.json", server["url"]) for server in servers] == ["/plants/"]
    assert client.get("/web/index.html").status_code == 404  # its addresses begin at the root


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


# ---- the worker, with caches and a network of its own

# Gives `send(name, request)`: lets the worker hear of an event, and returns what it answered.
WORKER = """
const [source, root] = args;
const listeners = {};
const shells = ["botanify-shell-0", `botanify-shell-${root}-0`, "botanify-shell-/of-others/-0"];
const stores = new Map([...shells, "botanify-shared", "another-app"].map((name) => [name, new Map()]));
const opened = (name) => stores.get(name) ?? stores.set(name, new Map()).get(name);
const caches = {
  keys: async () => [...stores.keys()],
  delete: async (name) => stores.delete(name),
  open: async (name) => ({
    put: async (path, response) => opened(name).set(path, response),
    match: async (path) => opened(name).get(path)?.clone(),
  }),
};
const self = {
  location: new URL(`https://botanify.test${root}web/worker.js`), clients: { claim: async () => {} }, skipWaiting() {},
  addEventListener: (name, listener) => { listeners[name] = listener; },
};
const service = async () => new Response("service", { headers: { "Page-Version": version } });
const another = new Response("another", { headers: { "Page-Version": "another" } });
const gateway = (status) => async () => new Response("gateway", { status });
let network = service;
const names = "self, caches, fetch, setTimeout";
const worker = new Function(names, `${source}; return { SHELL, VERSION, KEPT };`);
const soon = (work, ms) => setTimeout(work, ms / 400);
const { SHELL, VERSION: version, KEPT } = worker(self, caches, () => network(), soon);
const request = (path, options) => new Request(new URL(`${root}${path}`, self.location), options);
async function send(name, request) {
  const waits = [];
  let answer;
  const respondWith = (response) => { answer = response; };
  listeners[name]({ request, waitUntil: (work) => waits.push(work), respondWith });
  await Promise.all(waits);
  return answer;
}
const kept = async () => Promise.all([...opened(SHELL).values()].map((response) => response.clone().text()));
"""


@pytest.fixture(params=["/", "/plants/"])
def worker(page, client, request):
    """Runs steps with the worker of a service at the root of its host, and with one behind a path."""
    source = client.get("/web/worker.js").text
    return lambda steps: page.evaluate(WORKER + steps, source, request.param)


INSTALL = 'await send("install");'


def test_the_worker_keeps_its_own_version_and_nothing_of_another(worker, client):
    names, version, num_kept = worker(
        INSTALL + 'await send("activate"); return [[...stores.keys()], version, KEPT.length]'
    )
    assert names[:-1] == ["botanify-shell-/of-others/-0", "botanify-shared", "another-app"]
    assert names[-1].endswith(version)
    assert num_kept == len(constants_of(client.get("/web/worker.js").text)["FILES"])


@from_table
def test_what_is_kept_answers_where_the_service_does_not(worker, network, answer):
    steps = f"network = {network}; return (await send('fetch', request('web/plants.html'))).text();"
    assert worker(INSTALL + steps) == answer


def test_answers_and_keys_never_pass_through_the_worker(worker):
    asked = (
        "[request('identify', { method: 'POST' }), request('model'), request('share'), request('web/worker.js'), other]"
    )
    steps = f"return [await Promise.all({asked}.map((each) => send('fetch', each))), opened(SHELL).size - KEPT.length];"
    other = "const other = new Request('https://other.test' + root);"
    assert worker(INSTALL + other + steps) == [[None] * 5, 0]


def test_a_page_of_a_gateway_or_of_another_version_is_not_kept(worker):
    broken = "async () => new Response('', { status: 502, headers: { 'Page-Version': version } })"
    for network in ("gateway(200)", broken, "() => another"):
        failed = "await send('install').catch(() => 'failed'), opened(SHELL).size"
        assert worker(f"network = {network}; return [{failed}];") == ["failed", 0]
    steps = "network = gateway(200); await send('fetch', request('?lang=de')).catch(() => null); return kept();"
    assert set(worker(INSTALL + steps)) == {"service"}


SHARE = """
const form = new FormData();
form.append("image", new File(["pixels"], "rose.jpg"));
const share = request("share?lang=fr", { method: "POST", body: form });
Object.defineProperty(share, "referrer", { value: referrer });
opened("botanify-shared").set("/shared/7", new Response("of another app"));
const { status, headers } = await send("fetch", share);
const shared = await Promise.all([...opened("botanify-shared").values()].map((each) => each.text()));
return [status, headers.get("Location"), shared, root];
"""


def test_an_app_may_share_photographs_and_no_web_page(worker):
    status, address, kept, root = worker('const referrer = "https://other.test/";' + SHARE)
    assert (status, address) == (303, f"https://botanify.test{root}?shared")  # in the reader's language
    assert kept == ["of another app"]
    for app in ("", "android-app://gallery.test/"):
        assert worker(f'const referrer = "{app}";' + SHARE) == [303, address, ["pixels"], root]


# ---- in a browser


class Site:
    """The page of a service behind a real socket, with answers that are made by hand."""

    def __init__(self, app):
        self.app, self.asked = app, []
        self.root = ""  # the path that it stands behind

    async def __call__(self, scope, receive, send):
        path = scope["path"].removeprefix(self.root)
        scope = scope | {"path": path, "raw_path": path.encode()}
        self.asked.append((scope["method"], path))
        if path == "/other-site":
            await self._send(send, self.other_site.encode(), b"text/html")
        elif path == "/identify":
            while (await receive()).get("more_body"):
                pass
            await self._send(send, SPECIES | {"request_id": f"request-{len(self.asked)}"})
        elif path == "/model":
            await self._send(send, MODEL)
        else:
            await self.app(scope, receive, send)

    async def _send(self, send, content, kind=b"application/json"):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def site(settings, request):
    site = Site(create_app(settings, decoder=InProcessDecoder()).app)
    site.root = getattr(request, "param", "")
    with serve(site) as (host, port):
        site.address = f"http://{host}:{port}{site.root}"
        yield site


behind_a_path = pytest.mark.parametrize("site", ["", "/plants"], indirect=True)


@pytest.fixture
def open_app(site, new_page):
    """Opens the page and waits until the worker has it."""

    def open_one(view="wide", **options):
        tab = Tab(new_page(view, service_workers="allow", **options), f"{site.address}/")
        wait_until(lambda: tab.page.evaluate("navigator.serviceWorker.controller !== null"))
        return tab

    return open_one


@behind_a_path
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
    kept = f"""caches.match("{site.root}/").then((kept) => kept.text()).then((text) => text.includes('lang="fr"'))"""
    wait_until(lambda: page.evaluate(kept))
    page.context.set_offline(True)
    page.goto(f"{site.address}/")
    assert page.inner_text("h1") == CATALOGUES["fr"]["intro.title"]
    tab.choose(PHOTOGRAPHS[1])
    assert CATALOGUES["fr"]["problem.kept"] in tab.problem_text()
    page.context.set_offline(False)  # the page hears of it
    tab.answer_text()


SHARING = """
  <link rel="icon" href="data:,"><meta name="referrer" content="no-referrer">
  <form method="post" enctype="multipart/form-data" action="{address}/share?lang=fr">
    <input type="file" name="image" multiple>
  </form>"""


def share(page, site):
    """Shares two photographs from a page of another site, which without a referrer looks like an app."""
    site.other_site = SHARING.format(address=site.address)
    page.goto(site.address.replace("127.0.0.1", "localhost") + "/other-site")
    page.set_input_files("input", PHOTOGRAPHS[:2])
    page.evaluate("document.forms[0].submit()")


@behind_a_path
def test_a_photograph_that_another_app_shares_is_identified_once_the_reader_agrees(site, open_app):
    tab = open_app("phone")
    page = tab.page
    share(page, site)
    page.locator("#notice", has_text="2 pictures came from another app or page.").wait_for()
    assert ("POST", "/identify") not in site.asked
    assert page.url == f"{site.address}/"  # a reload does not look for them again
    assert page.evaluate("caches.has('botanify-shared')") is False
    tab.assert_accessible()
    page.locator("#notice").get_by_role("button", name="Add pictures").click()
    tab.answer_text()
    assert page.locator(".tile").count() == 2
    assert page.locator(".tile").first.get_attribute("data-name") == "1.jpg"
    assert ("POST", "/share") not in site.asked
    page.goto(f"{site.address}/?shared")  # nothing is left there
    page.locator("#notice", has_text="The photograph that you shared did not arrive").wait_for()
    assert page.locator(".tile").count() == 0
    assert page.context.cookies() == []


def test_another_language_answers_about_the_photographs_that_were_chosen(open_app):
    tab = open_app()
    page = tab.page
    tab.choose(*PHOTOGRAPHS[:2])
    tab.answer_text()
    page.get_by_role("link", name="Deutsch").click()
    page.get_by_role("heading", name="Antwort", exact=True).wait_for()
    tab.answer_text()
    assert page.locator(".tile").count() == 2
    tab.see("aufbewahrt, nur auf diesem")
    page.reload()
    assert page.evaluate("document.documentElement.lang") == "de"  # the page remembers it
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
