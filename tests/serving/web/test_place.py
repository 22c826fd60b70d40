"""The button that sends where the device is, coarsely, in a browser with a model that knows places."""

import pytest

from tests.serving.program import service
from tests.serving.test_place import PRIOR, RULE, SYDNEY
from tests.serving.tiny import seal_tiny_bundle
from tests.serving.web.tab import PHOTOGRAPHS, Tab

# The fields of every form, since the browser hides those of a form with a picture.
LISTEN = """
window.sent = [];
const append = FormData.prototype.append;
FormData.prototype.append = function (name, value, ...more) {
  window.sent.push([name, String(value)]);
  return append.call(this, name, value, ...more);
};
"""


@pytest.mark.parametrize("view", ["wide", "phone"])
def test_the_place_of_the_device_is_sent_coarsely_once_and_forgotten(new_page, tmp_path, view):
    bundle = seal_tiny_bundle(tmp_path / "tiny", tmp_path, place=(PRIOR, RULE)).folder
    place = {"latitude": SYDNEY[0] + 0.01234, "longitude": SYDNEY[1] + 0.01234}
    with service(bundle) as running:
        page = new_page(view, geolocation=place, permissions=["geolocation"])
        page.add_init_script(LISTEN)
        tab = Tab(page, running.url)
        tab.choose(PHOTOGRAPHS[1])
        assert "Rosa canina" in tab.answer_text()
        assert "latitude" not in dict(page.evaluate("sent"))
        page.get_by_text("Place (optional)").click()
        tab.press("Use where I am")
        tab.see("33.9° S, 151.2° E.")
        page.get_by_text("Place or season decided").wait_for(state="attached")
        sent = dict(page.evaluate("sent.splice(0)"))
        assert (sent["latitude"], sent["longitude"]) == ("-33.9", "151.2")
        tab.assert_accessible()
        tab.press("Forget it")
        page.get_by_text("Place or season decided").wait_for(state="detached")
        assert "latitude" not in dict(page.evaluate("sent"))
