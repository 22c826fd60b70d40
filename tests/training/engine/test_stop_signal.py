import os
import signal
import threading

import pytest

from training.engine.stop_signal import EXIT_REQUEUE, Requeue, StopSignal


def test_sigterm_is_recorded_and_ends_nothing():
    with StopSignal() as stop:
        assert not stop.received
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received


def test_the_old_handler_is_restored():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_outside_the_main_thread_no_handler_is_installed():
    found = []

    def enter():
        with StopSignal() as stop:
            found.append(stop.received)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [False]


def test_the_exit_code_is_tempfail():
    with pytest.raises(SystemExit) as ended:
        raise Requeue
    assert ended.value.code == EXIT_REQUEUE == os.EX_TEMPFAIL
