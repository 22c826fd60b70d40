"""What the page does while it waits, if the service is busy, fails or is gone, in a real browser."""

import re
import signal

import msgspec
import pytest

from serving.api.problems import problem_document
from tests.serving.program import service
from tests.serving.tiny import encode
from tests.serving.web.tab import PHOTOGRAPHS, Tab, file
from tests.serving.web.test_browser_pictures import noise

SLOW_UPLOAD = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 60_000}  # bytes per second


def refusal(code="overloaded", retry_after_s=1, detail="The service has more to do than it can."):
    problem = msgspec.to_builtins(problem_document(code, detail, "request-1"))
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return lambda route: route.fulfill(status=problem["status"], json=problem, headers=headers)


# ---- a busy service


def test_rate_of_a_real_service_is_waited_for(new_page, bundle_folder):
    with service(bundle_folder, "--rate-per-minute", "4", "--rate-burst", "1") as running:
        tab = Tab(new_page(), running.url)
        tab.choose(PHOTOGRAPHS[0])
        tab.answer_text()
        tab.choose(PHOTOGRAPHS[1])
        tab.page.wait_for_selector("text=The pictures are sent again in")
        assert "Too many requests" in tab.page.inner_text("#answer")
        tab.answer_text()
        assert len(tab.page.query_selector_all(".tile")) == 2


# ---- uploads


def throttled(page):
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    session.send("Network.emulateNetworkConditions", SLOW_UPLOAD)
    return session


LARGE = file("noise.jpg", encode(noise((700, 600)), "JPEG", quality=85))  # 400 kB, sent as they are


def wait_until_half_sent(page):
    """Waits until some of the pictures have been sent, and not all."""
    page.wait_for_function(
        "() => { const { value } = document.querySelector('.wait__sent'); return value > .1 && value < 1; }"
    )


def test_upload_shows_how_much_has_been_sent(open_real_tab):
    tab = open_real_tab()
    throttled(tab.page)
    tab.choose(LARGE)
    wait_until_half_sent(tab.page)
    assert re.search(r"Sending 1 picture …\s+\d\d%", tab.page.inner_text("#answer"))
    tab.assert_accessible()
    tab.answer_text()


def test_service_that_goes_away_in_the_middle_is_asked_by_a_page_that_is_opened_anew(new_page, bundle_folder):
    with service(bundle_folder) as running:
        _, port = running.address()
        tab = Tab(new_page(), running.url)
        session = throttled(tab.page)
        tab.choose(LARGE)
        wait_until_half_sent(tab.page)
        running.stop(signal.SIGKILL)
    told = tab.problem_text()
    assert "The service did not answer" in told
    assert "Kept. I ask as soon as there is a connection." in told
    session.send("Network.emulateNetworkConditions", SLOW_UPLOAD | {"uploadThroughput": -1})
    with service(bundle_folder, "--port", str(port)):
        tab.page.reload()  # asks anew
        tab.answer_text()


# ---- every state without faults


FAILURES = {  # what the page then shows, and what the service does
    "busy": ("The pictures are sent again in", refusal(retry_after_s=60)),
    "waiting": ("1 picture …", lambda route: None),
    "key": ("This service requires an API key", refusal("unauthorized", None)),
    "internal": ("Internal error", refusal("internal", None, "The service failed and has logged the error.")),
    "gateway": ("The service answered with status 502", lambda route: route.fulfill(status=502, body="<h1>Bad</h1>")),
    "gone": ("The service did not answer", lambda route: route.abort()),
}


@pytest.mark.parametrize("view", ["narrow", "dark"])
@pytest.mark.parametrize("kind", FAILURES)
def test_every_state_without_an_answer_is_shown_without_faults(open_tab, kind, view):
    tab = open_tab(view)
    words, failure = FAILURES[kind]
    tab.failures = [failure]
    tab.choose(PHOTOGRAPHS[0])
    tab.page.wait_for_selector(f"#answer >> text={words}")
    tab.assert_accessible()
