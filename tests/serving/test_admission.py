"""Who is let in: by what is ahead, how fast answers leave, and what memory is left. The clock is the test's."""

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


def admission(*, num_requests=100, num_bytes=10**9, wait_s=1.0, pace_s=0.1):
    return Admission(AdmissionLimits(num_requests, num_bytes, wait_s), Metrics(), Pace(pace_s))


def let_in(door, stack, num_pictures=1, *, num_bytes=1, deadline_s=10):
    ticket = stack.enter_context(door.enter(num_bytes))
    door.begin(ticket, num_pictures, num_bytes, deadline_s)
    return ticket


@pytest.fixture
def stack():
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield stack


def test_work_ahead_is_bounded_by_the_wait_that_it_means(clock, stack):
    door = admission(wait_s=1.0, pace_s=0.1)
    for _ in range(11):
        let_in(door, stack)
    with pytest.raises(Overloaded) as refused:
        stack.enter_context(door.enter(1))
    assert refused.value.retry_after_s == 1


def test_retry_after_is_when_there_will_be_room(clock, stack):
    door = admission(wait_s=1.0, pace_s=0.1)
    for _ in range(3):
        let_in(door, stack, 5)
        door.pace.seconds = 0.05
    door.pace.seconds = 0.4
    with pytest.raises(Overloaded) as refused:
        stack.enter_context(door.enter(1))
    assert refused.value.retry_after_s == 4  # 15 pictures of 0.4 s are 6 s, and seven may be ahead anyway


def test_a_slow_machine_still_serves_eight_clients(clock, stack):
    door = admission(wait_s=1.0, pace_s=3.0)
    for _ in range(8):
        let_in(door, stack, deadline_s=60)
    with pytest.raises(Overloaded):
        stack.enter_context(door.enter(1))


def test_what_ends_makes_room(clock, stack):
    door = admission(num_requests=1)
    with door.enter(1), pytest.raises(Overloaded):
        stack.enter_context(door.enter(1))
    let_in(door, stack)


def test_uploads_are_bounded_by_their_bytes_and_one_is_always_held(clock, stack):
    door = admission(num_bytes=100)
    with door.enter(500), pytest.raises(Overloaded):
        stack.enter_context(door.enter(1))
    let_in(door, stack, num_bytes=60)
    with pytest.raises(Overloaded):
        stack.enter_context(door.enter(60))
    let_in(door, stack, num_bytes=40)


def test_slow_uploads_do_not_keep_others_out(clock, stack):
    door = admission(wait_s=1.0, pace_s=0.1)
    for _ in range(11):
        stack.enter_context(door.enter(1))
    with pytest.raises(Overloaded):
        stack.enter_context(door.enter(1))
    clock[0] += 1.1
    let_in(door, stack)


def test_a_request_that_would_miss_its_deadline_is_refused_before_any_work(clock, stack):
    door = admission(wait_s=10, pace_s=0.5)
    for _ in range(4):
        let_in(door, stack)
    ticket = stack.enter_context(door.enter(1))
    with pytest.raises(Overloaded):
        door.begin(ticket, 1, 1, 2.0)
    door.begin(ticket, 1, 1, 3.0)


def test_a_request_alone_is_always_tried(clock, stack):
    door = admission(pace_s=5.0)
    let_in(door, stack, deadline_s=1.0)


def test_pace_follows_the_throughput_and_not_the_time_of_one_answer():
    pace = Pace(1.0)
    for index in range(200):  # eight requests under way, one done every 0.1 s
        now = 10 + 0.1 * index
        pace.answered(1, began=now - 0.8, now=now)
    assert pace.seconds == pytest.approx(0.1, rel=0.01)


def test_pace_does_not_count_idle_time():
    pace = Pace(1.0)
    for index in range(200):
        pace.answered(1, began=60.0 * index, now=60.0 * index + 0.2)
    assert pace.seconds == pytest.approx(0.2, rel=0.01)


def test_pace_counts_pictures():
    pace = Pace(1.0)
    for index in range(200):
        pace.answered(5, began=60.0 * index, now=60.0 * index + 1.0)
    assert pace.seconds == pytest.approx(0.2, rel=0.01)
