"""Facts about the repository itself: its configuration, its lock and its Makefile agree with what is on disk."""

import os
import re
import subprocess
import tomllib
from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.make import ROOT, project_files, ran

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()

# A registry's host or index address ties everybody to one mirror; a home folder or workspace ties them to one machine.
# The dots stand in brackets so that this file does not find itself.
PLACES = re.compile(
    r"pypi[.]org|pythonhosted[.]org|download[.]pytorch[.]org|registry[.]npmjs|deb[.]debian[.]org|"
    r"https?://[^\s\"'<>)]+/(?:simple|packages|debian)/|"
    r"(?<![\w.~/])/(?:home|root|Users|work)/[\w.]|[A-Z]:\\Users\\"
)


def pins() -> dict[str, str]:
    """Gives name -> exact version for every pin of the lock that carries at least one hash."""
    stanza = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)[^\n]*\\\n +--hash=sha256:[0-9a-f]{64}", re.MULTILINE)
    return {canonicalize_name(name): version for name, version in stanza.findall(LOCK)}


def names_needed_by(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """Follows the installed metadata from one distribution to all that it needs on this machine."""
    if (name, extras) in seen:
        return set()
    seen.add((name, extras))
    names = {name}
    for line in distribution(name).requires or []:
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            names |= names_needed_by(canonicalize_name(needed.name), frozenset(needed.extras), seen)
    return names


def test_no_file_names_a_registry_or_a_place_on_one_machine():
    found = []
    for path in project_files():
        content = path.read_bytes()
        if b"\0" in content[:8192]:
            continue
        text = content.decode("utf-8", errors="replace")
        if PLACES.search(text):  # one search of a file is faster than one of each line
            lines = enumerate(text.splitlines(), 1)
            found += [f"{path.relative_to(ROOT)}:{n}: {line[:120]}" for n, line in lines if PLACES.search(line)]
    assert not found, "\n".join(found)


def test_every_declared_dependency_is_pinned_by_hash_within_its_bounds():
    project = PROJECT["project"]
    groups = [project["dependencies"], PROJECT["build-system"]["requires"], *project["optional-dependencies"].values()]
    pinned = pins() | {project["name"]: project["version"]}
    declared = [Requirement(line) for group in groups for line in group]
    wrong = [str(r) for r in declared if not r.specifier.contains(pinned.get(canonicalize_name(r.name), "0"))]
    assert not wrong, f"run `make lock`: {wrong}"


def test_every_package_that_is_installed_for_us_is_pinned_by_hash():
    needed = names_needed_by("botanify", frozenset({"serve", "train", "dev"}), set()) - {"botanify"}
    assert needed >= {"torch", "litestar", "uv"}
    assert not needed - pins().keys(), "run `make lock`"


def test_every_pin_has_a_hash():
    assert len(re.findall(r"^[^\s#].*==", LOCK, re.MULTILINE)) == len(pins())


def test_the_service_asks_for_no_torch():
    training_only = {"torch", "torchvision", "timm", "onnxscript"}
    needed = names_needed_by("botanify", frozenset({"serve"}), set())
    assert "litestar" in needed
    assert not needed & training_only


def test_another_build_of_pytorch_has_the_pinned_version_without_the_hashes_of_the_builds_for_cuda():
    def commands(*flags):
        listed = ran("make", "-nB", "train-env", *flags, check=True)
        return [line for line in listed.stdout.splitlines() if "torch" in line]

    assert not commands()
    constraints, install = commands("TORCH=cpu")
    command, _, path = constraints.partition(" > ")
    assert f"--constraints {path} " in install
    assert "--torch-backend cpu " in install
    kept = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.sub(r"^(torch(?:vision)?==\S+) \\\n(?: +--hash\S+(?: \\)?\n)+", r"\1\n", LOCK, flags=re.MULTILINE) == kept
    assert kept.count("--hash") > 0.9 * LOCK.count("--hash")


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))
    listing = ran("make", "--no-print-directory", "help", check=True)
    assert "serve" in targets
    assert set(re.findall(r"^  make ([a-z-]+) +\S", listing.stdout, re.MULTILINE)) == targets


def test_scripts_are_valid_bash_and_can_be_started_if_their_first_line_says_how():
    scripts = [path for path in project_files() if path.suffix in {".sh", ".sbatch"}]
    assert len(scripts) == 13
    for script in scripts:
        ran("bash", "-n", script, check=True)
        is_program = script.suffix == ".sh" and script.read_text().startswith("#!")
        assert os.access(script, os.X_OK) == is_program, script
