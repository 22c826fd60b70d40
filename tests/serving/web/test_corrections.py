"""The buttons under an answer, in a browser with a service that keeps corrections."""

import pytest

from serving.corrections.store import Store
from tests.serving.program import service
from tests.serving.web.examples import SPECIES
from tests.serving.web.tab import PHOTOGRAPHS, Tab

SENT = """
const { correction } = await load("correct.js");
const sent = [];
globalThis.fetch = async (address, { body }) => {
  sent.push([...body].map(([name, value]) => [name, value.name ?? value]));
  return Response.json({ correction_id: "1", name: "Bellis", num_pictures: 1, days: 30 });
};
const form = correction(args[0], { corrections: { days: 30 } }, [new File(["pixels"], "1.jpg")]);
const consent = form.all.find(({ attributes }) => attributes.id?.startsWith("correction-consent"));
const yes = form.all.find(({ onclick }) => onclick);
await yes.onclick();
consent.checked = true;
await yes.onclick();
const lines = form.children[0].children.map((line) => line.textContent.trim().split(" ")[0]);
return [...sent, lines];
"""


def test_photographs_go_along_with_a_correction_only_once_the_person_agrees(fresh_page):
    said = [["taxon", "helianthus-annuus"], ["certain", "false"]]
    alone, together, lines = fresh_page.evaluate(SENT, SPECIES)
    assert [alone, together] == [said, [*said, ["image", "1.jpg"]]]
    assert lines == ["Is", "I", "The", "Yes,", "It"]  # what goes along stands above the buttons that send


def test_one_of_many_answers_is_corrected_and_its_row_says_so(new_page, bundle_folder, tmp_path):
    with service(bundle_folder, "--corrections", str(tmp_path / "kept")) as running:
        tab = Tab(new_page("phone"), f"{running.url}/web/many.html")
        page = tab.page
        tab.choose(*PHOTOGRAPHS[:3])
        tab.see("3 photographs answered")
        tab.unfold(1)
        page.get_by_label("may keep my photograph").check()
        tab.press("Yes, Dog rose")
        tab.see("Kept: Rosa canina, 1 photograph")
        assert page.locator("#rows > li").nth(1).locator(".many__corrected").inner_text() == "You said: Rosa canina"
        assert page.locator(".many__corrected").count() == 1


@pytest.mark.parametrize("view", ["wide", "phone"])
def test_a_person_confirms_corrects_and_takes_back(new_page, bundle_folder, tmp_path, view):
    folder = tmp_path / "kept"
    with service(bundle_folder, "--corrections", str(folder)) as running:
        tab = Tab(new_page(view), running.url)
        tab.choose(PHOTOGRAPHS[1])
        tab.answer_text()
        page = tab.page
        tab.assert_accessible()
        lines = ("Is that right?", "I am certain", "may keep my photograph", "Yes, Dog rose", "It is another plant:")
        heights = [page.get_by_text(words).bounding_box()["y"] for words in lines]
        assert heights == sorted(heights)
        page.evaluate("document.addEventListener('corrected', ({ detail }) => { window.heard = detail; })")
        tab.press("Yes, Dog rose")
        tab.see("Kept: Rosa canina, 0 photographs")
        assert page.evaluate("heard.correction.name") == "Rosa canina"
        assert page.get_by_text("Is that right?").is_hidden()
        tab.press("Take it back")
        tab.see("It is deleted.")
        assert page.evaluate("heard.correction") is None
        page.get_by_label("may keep my photograph").check()
        page.get_by_label("I am certain").check()
        page.get_by_label("It is another plant").fill("Crocus ver")
        page.locator("option[value='Crocus vernus']").wait_for(state="attached")
        tab.fill("It is another plant", "Crocus vernus", "Enter")
        tab.see("Kept: Crocus vernus, 1 photograph, for 365 days")
        tab.assert_accessible()
        with Store(folder) as store:
            (kept,) = store.all()
            assert (kept.taxon_id, kept.certain) == ("crocus-vernus", True)
            assert store.path(kept.pictures[0]).read_bytes() == PHOTOGRAPHS[1]["buffer"]
            tab.press("Take it back")
            tab.see("It is deleted.")
            assert list(store.all()) == []
