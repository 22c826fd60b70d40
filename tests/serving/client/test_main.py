"""The program ends with one line where there is no answer, and never shows the key."""

import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import msgspec
import pytest

from serving.client.__main__ import in_words, main
from serving.schemas import PlaceUse, Problem
from tests.make import cases, http_server
from tests.serving.client.test_deadlines import respond
from tests.serving.client.test_exchange import ANSWER
from tests.serving.program import ENVIRONMENT, ROOT
from tests.serving.tiny import jpeg

KEY = "botanify_Zq9wX"


@pytest.mark.parametrize(("arguments", "words"), cases(__file__, "refused_commands"))
def test_no_answer_is_one_line(arguments, words, tmp_path, capsys):
    (tmp_path / "a.jpg").write_bytes(jpeg())
    with pytest.raises(SystemExit) as caught:
        main([argument.format(here=tmp_path / "a.jpg", key=KEY) for argument in arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 1
    assert line.startswith("error (")
    assert words in line
    assert KEY not in line


def test_what_became_of_a_place_is_one_line():
    place = PlaceUse.of("no_prior")
    answer = msgspec.structs.replace(ANSWER, place=place, warnings=[place.reason, "another"])
    assert in_words(answer).splitlines()[-2:] == [f"place: {place.reason}", "note: another"]
    assert "place" not in in_words(ANSWER)


ESCAPES = "Rosa\x1b]0;owned\x07\x1b[2J\x9b2J\x7f"  # of terminals: a title, and two that clear the screen


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize("content", [
    msgspec.structs.replace(ANSWER, warnings=[ESCAPES]), Problem("about:blank", ESCAPES, 200, ESCAPES, "code", "id"),
])  # fmt: skip
def test_no_escape_of_a_server_reaches_the_terminal(flags, content, tmp_path, capsys):
    (tmp_path / "a.jpg").write_bytes(jpeg())
    with http_server(lambda handler: respond(handler, msgspec.json.encode(content))) as url, suppress(SystemExit):
        main([str(tmp_path / "a.jpg"), "--url", url, *flags])
    told = "".join(capsys.readouterr())
    assert "Rosa\\u001b]0;owned\\u0007" in told
    assert not re.search(r"[^\n -~\u00a0-\uffff]", told)


def test_ctrl_c_ends_the_program_without_a_traceback(tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command = [sys.executable, "-m", "serving.client", tmp_path / "a.jpg"]
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen([*command, "--url", url], cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE)
        silent.settimeout(120)
        with silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (130, b"interrupted\n")


def test_an_empty_variable_is_no_address():
    environment = {**ENVIRONMENT, "BOTANIFY_URL": "", "BOTANIFY_API_KEY": ""}
    command = [sys.executable, "-m", "serving.client", "gone.jpg"]
    told = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, timeout=120, check=False).stderr
    assert b"gone.jpg cannot be read" in told
