"""Admission by the work ahead, the throughput and the memory for uploads. Tests set the clock."""

from contextlib import ExitStack

import pytest

from serving import admission as module
from serving.admission import Admission, AdmissionLimits, Pace
from serving.errors import Overloaded
from serving.metrics import Metrics


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def make_admission(*, num_requests=100, num_bytes=10**9, wait_s=1.0, pace_s=0.1):
    return Admission(AdmissionLimits(num_requests, num_bytes, wait_s), Metrics(), Pace(pace_s))


def admit(admission, stack, num_pictures=1, *, num_bytes=1, deadline_s=10):
    request = stack.enter_context(admission.enter(num_bytes))
    admission.start_work(request, num_pictures, num_bytes, deadline_s)
    return request


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def test_request_is_refused_when_its_expected_wait_is_too_long(clock, stack):
    admission = make_admission(wait_s=1.0, pace_s=0.1)
    for _ in range(11):
        admit(admission, stack)
    with pytest.raises(Overloaded) as refused:
        stack.enter_context(admission.enter(1))
    assert refused.value.retry_after_s == 1


def test_retry_after_is_the_time_until_the_expected_wait_is_short_enough(clock, stack):
    admission = make_admission(wait_s=1.0, pace_s=0.1)
    for _ in range(3):
        admit(admission, stack, 5)
        admission.pace.seconds_per_picture = 0.05
    admission.pace.seconds_per_picture = 0.4
    with pytest.raises(Overloaded) as refused:
        stack.enter_context(admission.enter(1))
    assert (
        refused.value.retry_after_s == 4
    )  # 15 pictures of 0.4 s make 6 s, less the 2.8 s of the seven that may always be ahead


def test_slow_machine_still_serves_eight_clients(clock, stack):
    admission = make_admission(wait_s=1.0, pace_s=3.0)
    for _ in range(8):
        admit(admission, stack, deadline_s=60)
    with pytest.raises(Overloaded):
        stack.enter_context(admission.enter(1))


def test_request_that_ends_makes_room(clock, stack):
    admission = make_admission(num_requests=1)
    with admission.enter(1), pytest.raises(Overloaded):
        stack.enter_context(admission.enter(1))
    admit(admission, stack)


def test_uploads_are_limited_by_their_bytes_and_a_single_one_is_always_accepted(clock, stack):
    admission = make_admission(num_bytes=100)
    with admission.enter(500), pytest.raises(Overloaded):
        stack.enter_context(admission.enter(1))
    admit(admission, stack, num_bytes=60)
    with pytest.raises(Overloaded):
        stack.enter_context(admission.enter(60))
    admit(admission, stack, num_bytes=40)


def test_slow_uploads_do_not_block_others(clock, stack):
    admission = make_admission(wait_s=1.0, pace_s=0.1)
    for _ in range(11):
        stack.enter_context(admission.enter(1))
    with pytest.raises(Overloaded):
        stack.enter_context(admission.enter(1))
    clock[0] += 1.1
    admit(admission, stack)


def test_request_that_would_miss_its_deadline_is_refused_before_any_work(clock, stack):
    admission = make_admission(wait_s=10, pace_s=0.5)
    for _ in range(4):
        admit(admission, stack)
    request = stack.enter_context(admission.enter(1))
    with pytest.raises(Overloaded):
        admission.start_work(request, 1, 1, 2.0)
    admission.start_work(request, 1, 1, 3.0)


def test_request_without_work_ahead_is_always_accepted(clock, stack):
    admission = make_admission(pace_s=5.0)
    admit(admission, stack, deadline_s=1.0)


def test_pace_is_the_throughput_and_not_the_latency():
    pace = Pace(1.0)
    for index in range(200):  # eight requests in progress, one answered every 0.1 s
        now = 10 + 0.1 * index
        pace.record_answer(1, start=now - 0.8, now=now)
    assert pace.seconds_per_picture == pytest.approx(0.1, rel=0.01)


def test_pace_ignores_idle_time():
    pace = Pace(1.0)
    for index in range(200):
        pace.record_answer(1, start=60.0 * index, now=60.0 * index + 0.2)
    assert pace.seconds_per_picture == pytest.approx(0.2, rel=0.01)


def test_pace_is_per_picture():
    pace = Pace(1.0)
    for index in range(200):
        pace.record_answer(5, start=60.0 * index, now=60.0 * index + 1.0)
    assert pace.seconds_per_picture == pytest.approx(0.2, rel=0.01)
