"""The buttons under an answer, in a browser with a service that keeps corrections."""

import pytest

from serving.corrections.store import Store
from tests.serving.program import service
from tests.serving.web.tab import PHOTOGRAPHS, Tab, accessibility_faults, screenshot, scrolls_sideways

pytestmark = pytest.mark.browser


def test_one_of_many_answers_is_corrected_and_its_row_says_so(browser, new_page, bundle_folder, tmp_path):
    with service(bundle_folder, "--corrections", str(tmp_path / "kept")) as running:
        page = new_page("phone")
        page.goto(f"{running.url}/web/many.html")
        page.set_input_files("#files", PHOTOGRAPHS[:3])
        page.get_by_text("3 photographs answered").wait_for()
        page.locator("summary.many__line").nth(1).click()
        page.get_by_label("may keep my photograph").check()
        page.get_by_role("button", name="Yes, Dog rose").click()
        page.get_by_text("Kept: Rosa canina, 1 photograph").wait_for()
        assert page.locator("#rows > li").nth(1).locator(".many__corrected").inner_text() == "You said: Rosa canina"
        assert page.locator(".many__corrected").count() == 1


@pytest.mark.parametrize("view", ["wide", "phone"])
def test_a_person_confirms_corrects_and_takes_back(browser, new_page, bundle_folder, tmp_path, view):
    folder = tmp_path / "kept"
    with service(bundle_folder, "--corrections", str(folder)) as running:
        tab = Tab(new_page(view), running.url)
        tab.choose(PHOTOGRAPHS[1])
        tab.answer_text()
        page = tab.page
        assert accessibility_faults(page) == []
        assert not scrolls_sideways(page)
        question, certain = (page.get_by_text(words).bounding_box() for words in ("Is that right?", "I am certain"))
        assert question["y"] < certain["y"]
        page.evaluate("document.addEventListener('corrected', ({ detail }) => { window.heard = detail; })")
        page.get_by_role("button", name="Yes, Dog rose").click()
        page.get_by_text("Kept: Rosa canina, 0 photographs").wait_for()
        assert page.evaluate("heard.correction.name") == "Rosa canina"
        assert page.get_by_text("Is that right?").is_hidden()
        page.get_by_role("button", name="Take it back").click()
        page.get_by_text("It is deleted.").wait_for()
        assert page.evaluate("heard.correction") is None
        page.get_by_label("may keep my photograph").check()
        page.get_by_label("I am certain").check()
        page.get_by_label("It is another plant").fill("Crocus ver")
        page.locator("option[value='Crocus vernus']").wait_for(state="attached")
        page.get_by_label("It is another plant").fill("Crocus vernus")
        page.get_by_label("It is another plant").press("Enter")
        page.get_by_text("Kept: Crocus vernus, 1 photograph, for 365 days").wait_for()
        screenshot(page, f"correction_{view}")
        assert accessibility_faults(page) == []
        with Store(folder) as store:
            (kept,) = store.all()
            assert (kept.taxon_id, kept.certain) == ("crocus-vernus", True)
            assert store.path(kept.pictures[0]).read_bytes() == PHOTOGRAPHS[1]["buffer"]
            page.get_by_role("button", name="Take it back").click()
            page.get_by_text("It is deleted.").wait_for()
            assert list(store.all()) == []
        assert tab.faults == []
