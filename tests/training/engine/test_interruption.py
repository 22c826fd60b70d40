import os
import signal
import threading

import pytest

from training.engine.interruption import EXIT_COME_BACK, ComeBack, Interruption


def test_sigterm_is_noted_and_ends_nothing():
    with Interruption() as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.requested


def test_the_old_handler_is_back_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with Interruption():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_outside_the_main_thread_nothing_is_touched():
    found = []

    def enter():
        with Interruption() as interruption:
            found.append(interruption.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [False]


def test_the_exit_code_is_the_one_that_schedulers_take_for_try_again():
    with pytest.raises(SystemExit) as ended:
        raise ComeBack
    assert ended.value.code == EXIT_COME_BACK == os.EX_TEMPFAIL
