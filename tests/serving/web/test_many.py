"""The page for many photographs: in Node.js and in a browser."""

import csv
import io
import re
from pathlib import Path

import pytest

from tests.serving.tiny import GREEN, RED, SIDE_PX, WHITE, jpeg
from tests.serving.web.examples import SPECIES, STATES
from tests.serving.web.tab import ADDRESS, PHOTOGRAPHS, VIEWS, file

MANY = "/web/many.html"


MANY_ANSWERS = """
const [answers] = args;
let second;
const secondAnswered = new Promise((resolve) => { second = resolve; });
globalThis.answerTo = async (form) => {
  const { name } = form.get("image");
  if (name === "1.jpg") await secondAnswered;
  setTimeout(second, 20);
  return answers[name];
};
await load("many.js");
const told = [];
Object.defineProperty(document.getElementById("status"), "textContent", { set: (text) => told.push(text) });
const files = Object.keys(answers).map((name) => new File(["pixels"], name));
const chosen = document.getElementById("files");
chosen.files = files;
chosen.dispatchEvent(new Event("change"));
const rows = document.getElementById("rows");
while (rows.textContent.includes("waiting")) await new Promise((resolve) => { setTimeout(resolve, 10); });
return [told, ...rows.children.map((row) => row.querySelector(".many__words").textContent)];
"""


def test_each_answer_stands_in_the_row_of_its_photograph_in_whatever_order_they_come(fresh_page):
    states = ("uncertain", "probable", "one_of_three")
    answers = {"1.jpg": SPECIES} | {f"{number}.jpg": STATES[state] for number, state in enumerate(states, 2)}
    told, first, second, probable, three = fresh_page.evaluate(MANY_ANSWERS, answers)
    counts = [re.findall(r"\d+", sentence) for sentence in told]
    assert {sum(map(int, count)) for count in counts if len(count) == 2} == {4}, told  # answered, and to come
    assert first == "Common sunflowerHelianthus annuusYour plant · 1.jpg"
    assert second == "Not sureperhaps Common sunflowerNo clear answer · 2.jpg"
    assert probable == "Probably Common sunflowerHelianthus annuusProbably · 3.jpg"
    assert three == "One of these threeperhaps Common sunflower, Common daisy, or CowslipIn doubt · 4.jpg"


@pytest.mark.parametrize("view", VIEWS)
def test_each_photograph_has_an_answer_that_outlives_a_reload(open_real_tab, view):
    tab = open_real_tab(view, MANY)
    page = tab.page
    chosen = [file(f"{number}.jpg", jpeg(color)) for number, color in enumerate((RED, GREEN, WHITE))]
    chosen[1]["name"] = "1.heic"  # the service looks at the bytes, the page at the name
    tab.choose(*chosen, file("text.jpg", b"no picture"))
    tab.see("4 photographs answered. 1 of them has no answer.")
    names = [row.inner_text().splitlines()[-1] for row in page.locator("#rows > li").all()]
    assert [name.split(" · ")[-1] for name in names] == ["0.jpg", "1.heic", "2.jpg", "text.jpg"]  # as they were sent
    preview = page.locator("#rows img[src^='data:image/webp']")
    assert preview.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == SIDE_PX
    tab.assert_accessible()
    tab.unfold()  # the same card as on the page for one plant
    assert page.locator(".verdict__name").inner_text() == "Dog rose"
    tab.assert_accessible()
    page.get_by_role("button", name="Least certain first").press("Enter")
    assert "text.jpg" in page.inner_text("#rows > li:first-child")
    page.reload()
    tab.see("4 photographs answered")
    with page.expect_download() as download:
        tab.press("Save as CSV")
    text = Path(download.value.path()).read_text(encoding="utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert {row["photograph"] for row in rows} == {"0.jpg", "1.heic", "2.jpg", "text.jpg"}
    tab.press("Clear")
    assert page.locator("#rows > li").count() == 0
    page.reload()
    assert page.locator("#rows > li").count() == 0


def test_photographs_are_answered_after_a_list_was_cleared_on_its_way(open_tab):
    tab = open_tab()
    tab.page.goto(f"{ADDRESS}{MANY}")
    tab.page.locator("#keeping:checked").wait_for()  # the page listens
    tab.failures = [lambda route: None] * 2  # wait
    tab.choose(*PHOTOGRAPHS[:2])
    tab.see("0 answered, 2 to come.")
    tab.press("Clear the list")
    tab.choose(PHOTOGRAPHS[2])
    tab.see("1 photograph answered")
    assert tab.page.locator("#rows > li").count() == 1
