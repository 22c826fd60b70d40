"""The texts of the page: each language has all of them, and the page speaks the one that a reader wants."""

import html
import json
import re

import pytest

from tests.make import from_table
from tests.serving.web.conftest import WEB

LANGUAGES = sorted(path.stem for path in (WEB / "text").glob("*.json"))
CATALOGUES = {language: json.loads((WEB / "text" / f"{language}.json").read_text()) for language in LANGUAGES}
ENGLISH = CATALOGUES["en"]
PLURALS = {"zero", "one", "two", "few", "many", "other"}


def forms(text):
    """The forms of a text: itself, or one for each kind of number."""
    return [text] if isinstance(text, str) else list(text.values())


def placeholders(text):
    return {name for form in forms(text) for name in re.findall(r"\{(\w+)\}", form)}


def first_argument(code):
    """The first argument of a call, of which `code` starts after the parenthesis."""
    depth = 0
    for at, sign in enumerate(code):
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0 or (sign == "," and depth == 0):
            return code[:at]
    return code


def wanted():
    """Expressions of all keys that the page asks for; a variable part of a key is any word."""
    found = set()
    for path in WEB.glob("*.js"):
        code = path.read_text()
        for call in re.finditer(r"\b(?:say|hasText)\(", code):
            argument = first_argument(code[call.end() :])
            found |= {re.escape(key) for key in re.findall(r'"([\w.]+\.[\w.]+)"', argument)}
            for template in re.findall(r"`([^`]+)`", argument):
                found.add(re.sub(r"\\\$\\\{.*?\\\}(?=\\\.|$)", r"\\w+", re.escape(template)))
    for path in WEB.rglob("*.html"):
        found |= {re.escape(key) for key in re.findall(r"\{\{(\w+\.[\w.]+)\}\}", path.read_text())}
    return found | {re.escape("language.name")}  # in the links to the languages


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_has_every_text_with_the_same_placeholders(language):
    texts = CATALOGUES[language]
    assert sorted(texts) == sorted(ENGLISH)
    for key, text in texts.items():
        assert placeholders(text) == placeholders(ENGLISH[key]), key
        assert all(form.strip() == form != "" for form in forms(text)), key
        assert isinstance(text, str) or ("other" in text and text.keys() <= PLURALS), key


def test_the_page_asks_for_exactly_the_texts_that_there_are():
    keys = wanted()
    assert [key for key in keys if not any(re.fullmatch(key, known) for known in ENGLISH)] == []
    assert [known for known in ENGLISH if not any(re.fullmatch(key, known) for key in keys)] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_number_chooses_the_form_of_a_text(page_in, language):
    one, many = (page_in(language)("text.js", "say", "count.plants", {"n": n}) for n in (1, 12345))
    assert one.startswith("1 ")
    assert re.match(r"12\D?345 ", many)
    assert one.split()[-1] != many.split()[-1]


@from_table
def test_the_page_comes_in_the_language_that_was_chosen_or_that_the_browser_wants(client, address, headers, language):
    client.cookies.clear()
    page = client.get(address, headers=headers)
    assert f'<html lang="{language}">' in page.text
    assert "{{" not in page.text
    links = re.findall(r'<a href="(.*?)" hreflang="\w+" lang="(\w+)"( aria-current=true)?>(.*?)</a>', page.text)
    assert links == [
        (f"?lang={each}", each, " aria-current=true" * (each == language), texts["language.name"])
        for each, texts in CATALOGUES.items()
    ]  # each to the same page


CHOSEN = """
const link = Object.assign(document.createElement("a"), { lang: "fr" });
document.querySelectorAll = () => [link];
const { setUpLanguages } = await load("install.js");
setUpLanguages();
link.dispatchEvent(new Event("click"));
return document.cookie;
"""


def test_a_language_that_a_reader_chooses_is_remembered_for_a_year_below_the_path_of_the_service(fresh_page):
    assert fresh_page.evaluate(CHOSEN) == f"lang=fr; path={WEB.parent}/; max-age=31536000; samesite=lax"


INSTALLED = """
const { offerInstallation } = await load("install.js");
const { tell } = await load("elements.js");
const asked = [];
const question = { preventDefault: () => asked.push("prevented"), prompt: () => asked.push("asked") };
globalThis.addEventListener = (name, listener) => listener(question);
const button = document.createElement("button");
offerInstallation(button);
const told = [button.hidden];
for (let n = 1; n <= 3; n += 1) {
  tell("answered", {});
  told.push(button.hidden);
}
button.dispatchEvent(new Event("click"));
return [...told, button.hidden, ...asked];
"""


def test_the_page_offers_to_be_installed_after_its_third_answer(fresh_page):
    assert fresh_page.evaluate(INSTALLED) == [True, True, True, False, True, "prevented", "asked"]


def test_an_address_with_a_language_is_no_choice_since_any_site_may_link_to_it(client):
    for encoding in ("gzip", "identity"):
        assert "set-cookie" not in client.get("/?lang=de", headers={"accept-encoding": encoding}).headers


def test_a_page_that_a_browser_keeps_is_not_taken_for_one_in_another_language(client):
    client.cookies.clear()
    kept = client.get("/", headers={"accept-language": "de"})
    known = {"if-none-match": kept.headers["etag"]}
    assert client.get("/", headers={"accept-language": "de", **known}).status_code == 304
    assert client.get("/", headers={"accept-language": "fr", **known}).status_code == 200
    assert "last-modified" not in kept.headers


@pytest.mark.parametrize("path", ["/", "/web/many.html", "/web/plants.html", "/web/privacy.html"])
def test_every_page_has_the_head_of_all_in_its_language(client, path):
    page = client.get(path, headers={"Accept-Language": "de"}).text
    assert f'<meta name="description" content="{html.escape(CATALOGUES["de"]["page.description"])}">' in page
    assert '/web/text/de.json" as="fetch"' in page
    assert page.count("<title>") == page.count('name="theme-color" content="#f5f3ea"') == 1
    assert "{{" not in page


def test_the_parts_of_pages_are_no_pages(client):
    assert client.get("/web/parts/head.html").status_code == 404
