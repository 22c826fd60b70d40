"""What tests in all folders need."""

import importlib
import inspect
import json
import os
import signal
import subprocess
import threading
import tomllib
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
import tyro

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
PHOTOS = Path(os.environ.get("BOTANIFY_PHOTOS", ROOT.parent / "shared" / "data"))


def cases(test, name):
    """Cases of a test: those of this name in the file cases.toml beside it, or in the folder above."""
    folder = next(each for each in Path(test).parents if (each / "cases.toml").is_file())
    return tomllib.loads((folder / "cases.toml").read_text(encoding="utf-8"))[name]


def ran(*command, cwd=ROOT, check=False, **options):
    """A process that has ended, with what it wrote."""
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, check=check, capture_output=True, text=True, **options)


class _Parsed(BaseException):
    """The command line was accepted; the program goes no further."""


def main_of(program):
    """The main function of a program, a file or a module."""
    name = program.removesuffix(".py").replace("/", ".")
    is_folder = (ROOT / name.replace(".", "/")).is_dir()
    return importlib.import_module(f"{name}.__main__" if is_folder else name).main


def require_accepted(program, *arguments):
    """Asserts that a program accepts a command line."""
    real = tyro.cli

    def parse_only(*flags, **options):
        real(*flags, **options)
        raise _Parsed

    main = main_of(program)
    with patch("tyro.cli", parse_only), patch("sys.argv", [program, *arguments]), pytest.raises(_Parsed):
        main()


def fake_command(folder, name, body="exit 0"):
    """Writes an executable that records its arguments in NAME.txt, one a line, and then runs the shell line."""
    (folder / name).write_text(f"#!/usr/bin/env bash\nprintf '%s\\n' \"$@\" > {folder}/{name}.txt\n{body}\n")
    (folder / name).chmod(0o755)


def with_commands(folder, **more):
    """The environment in which the folder's commands stand in for those of the same name."""
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"} | more


def project_files():
    """Every file that git tracks or would track, so that a new file is looked at before its first commit."""
    try:
        listing = ran("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def kill_when(condition, *command):
    """Starts a program, and kills it as soon as the condition holds."""
    words = [str(word) for word in command]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        wait_until(condition, process)
        os.killpg(process.pid, signal.SIGKILL)  # what it started, too
    assert process.returncode == -signal.SIGKILL, "it had ended before"


@contextmanager
def http_server(answer):
    """A server on this machine that answers each request by `answer(handler)`; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_any(self):
            with suppress(ConnectionError):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                answer(self)

        do_GET = do_HEAD = do_POST = do_any

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def require_ended(processes):
    """Asserts that processes end soon; kills those that do not."""
    _, alive = psutil.wait_procs(processes, timeout=300)
    for process in alive:
        process.kill()
    assert processes
    assert not alive


def from_table(test):
    """Runs a test for each row of its table in the JSON file beside it, whose first row names the arguments."""
    header, *rows = json.loads(Path(inspect.getfile(test)).with_suffix(".json").read_text())[test.__name__]
    values = [[tuple(cell) if isinstance(cell, list) else cell for cell in row] for row in rows]
    return pytest.mark.parametrize(header, values)(test)
