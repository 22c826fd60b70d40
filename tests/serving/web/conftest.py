"""Calls the functions of the page that need no document, in Node.js."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

WEB = Path(__file__).resolve().parents[3] / "serving" / "web"

# Reads one call a line, writes one result a line; undefined becomes null.
DRIVER = """
import { createInterface } from "node:readline";
for await (const line of createInterface({ input: process.stdin })) {
  const [file, name, args] = JSON.parse(line);
  let result;
  try {
    result = { value: (await import(`./${file}`))[name](...args) ?? null };
  } catch (error) {
    result = { error: String(error.stack) };
  }
  console.log(JSON.stringify(result));
}
"""


class Page:
    """The modules of the page in a Node.js process."""

    def __init__(self, process):
        self._process = process

    def __call__(self, file, name, *args):
        """Calls an exported function of a file with JSON values, and returns its JSON value."""
        self._process.stdin.write(json.dumps([file, name, args]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Node.js ended with {self._process.wait()}"
        result = json.loads(line)
        assert "error" not in result, result["error"]
        return result["value"]


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js 16 or later; install it, on Debian with `apt-get install nodejs`")
    folder = tmp_path_factory.mktemp("page")
    for module in WEB.glob("*.js"):
        shutil.copy(module, folder)
    (folder / "package.json").write_text('{"type": "module"}')  # without it, Node.js takes .js for CommonJS
    (folder / "driver.mjs").write_text(DRIVER)
    command = [node, folder / "driver.mjs"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Page(process)
