import os
import signal
import sys
import threading

import pytest

from tests.make import ran
from training.engine.stop_signal import EXIT_INTERRUPTED, EXIT_REQUEUE, StopSignal

PROGRAM = """
import os, signal, sys, time
from training.engine.stop_signal import StopSignal
with StopSignal() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    print(stop.exit_code, flush=True)
    time.sleep(0.6)
    os.kill(os.getpid(), signal.SIGTERM)
    print(stop.exit_code, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("not reached", flush=True)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, EXIT_REQUEUE), (signal.SIGINT, EXIT_INTERRUPTED)])
def test_a_signal_is_recorded_and_ends_nothing(number, code):
    with StopSignal() as stop:
        assert not stop.exit_code
        os.kill(os.getpid(), number)
        assert stop.exit_code
        assert stop.exit_code == code


def test_a_second_ctrl_c_ends_the_program_at_once_unless_it_is_the_same_one_passed_on():
    ended = ran(sys.executable, "-c", PROGRAM)
    assert ended.stdout.split() == ["130", "130"]
    assert ended.returncode == EXIT_INTERRUPTED
    assert ended.stderr.count("second Ctrl-C") == 1
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_old_handler_is_restored(number):
    before = signal.getsignal(number)
    with StopSignal():
        assert signal.getsignal(number) != before
    assert signal.getsignal(number) == before


def test_a_terminal_that_is_gone_does_not_end_the_run(monkeypatch):
    def fail(*_):
        raise OSError

    with StopSignal() as stop:
        monkeypatch.setattr(os, "write", fail)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.exit_code


def test_outside_the_main_thread_no_handler_is_installed():
    found = []

    def enter():
        with StopSignal() as stop:
            found.append(stop.exit_code)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [0]
