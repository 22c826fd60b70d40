"""Where other devices of the home network reach the service."""

import io
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from serving import __main__ as program
from serving.__main__ import home_url, show_home_url
from tests.serving.program import ENVIRONMENT, PATIENCE_S, ROOT

URL = "http://192.168.178.23:8000"


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://127.0.0.1:8000"), ("127.0.0.1", None), ("192.168.0.7", None)],
)
def test_only_a_service_for_all_has_an_address_in_the_home_network(monkeypatch, host, url):
    monkeypatch.setattr(program, "_ELSEWHERE", ("127.0.0.1", 9))  # as if this machine had no other network
    assert home_url(host, 8000) == url


def test_a_machine_without_a_network_has_no_address_in_one(monkeypatch):
    monkeypatch.setattr(program, "_ELSEWHERE", ("256.0.0.1", 9))
    assert home_url("0.0.0.0", 8000) is None


def test_the_code_is_dark_on_light_on_every_terminal():
    segno = pytest.importorskip("segno")
    terminal = io.StringIO()
    show_home_url(URL, terminal)
    first, *rows = terminal.getvalue().splitlines()
    assert first == f"In your home network: {URL}"
    drawn = [re.fullmatch(r"\x1b\[97;40m([ █▀▄]+)\x1b\[0m", row)[1] for row in rows]
    light = [[pixel in "█▀" for pixel in row] for row in drawn], [[pixel in "█▄" for pixel in row] for row in drawn]
    found = [list(row) for pair in zip(*light, strict=True) for row in pair]
    wanted = [[not dark for dark in row] for row in segno.make_qr(URL).matrix_iter(border=2)]
    assert found[: len(wanted)] == wanted


def test_a_terminal_without_block_characters_shows_the_address_alone():
    pytest.importorskip("segno")
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show_home_url(URL, ascii_only)
    assert ascii_only.buffer.getvalue().decode().strip() == f"In your home network: {URL}"


@pytest.mark.slow
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_the_program_shows_the_address_on_a_terminal_when_other_devices_reach_it(bundle_folder, host):
    pytest.importorskip("segno")
    ours, of_program = pty.openpty()
    command = [sys.executable, "-m", "serving", "--bundle", bundle_folder, "--port", "0", "--host", host]
    process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=of_program, stderr=subprocess.PIPE, text=True)
    os.close(of_program)
    try:
        assert any('"listening"' in line for line in process.stderr)
        assert any('"ready"' in line for line in process.stderr)
        process.send_signal(signal.SIGINT)  # SIGTERM waits for a load balancer
        process.communicate(timeout=PATIENCE_S)
        try:
            shown = os.read(ours, 100_000).decode()
        except OSError:  # nothing was written
            shown = ""
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert ("In your home network: http://" in shown) == (home_url(host, 1) is not None)
