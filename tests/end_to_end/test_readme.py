"""README.md is held against the project: its map against the disk, its commands by running them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.service import running_service
from training.dataset.collection import collection_files
from training.herbarium import write_image_folder
from training.recipe import recipe_files

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGES = ("models", "training", "serving")
# So small that it runs anywhere; everything else is as written.
TINY = (
    "--architecture test_efficientnet --weights none --device cpu --workers 0 --epochs 1 --batch-size 4 "
    "--picture-px 32 --progressive --serve-px 32 --cutmix 0 --randaugment-ops 0"
)


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def mapped_names() -> dict[str, set[str]]:
    """Package -> what the map lists in it."""
    names: dict[str, set[str]] = {}
    package = ""
    for line in section("The map").splitlines():
        if found := re.match(r"(\w+)/ ", line):
            package = found[1]
            names[package] = set()
        elif found := re.match(r"  ([\w./-]+)", line):
            names[package].add(found[1].rstrip("/"))
    return names


def names_on_disk(package: str) -> set[str]:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", package],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {Path(line).parts[1] for line in tracked.stdout.splitlines()} - {"__init__.py"}


@pytest.mark.parametrize("package", PACKAGES)
def test_map_lists_exactly_what_is_on_disk(package):
    assert mapped_names()[package] == names_on_disk(package)


@pytest.mark.parametrize(
    ("title", "files"),
    [("Train it on your own folder", recipe_files()), ("Train it on the public data sets", collection_files())],
)
def test_every_recipe_is_listed(title, files):
    assert set(re.findall(r"^\| `(\w+)` \|", section(title), re.MULTILINE)) == {path.stem for path in files}


def test_pictures_and_links_of_the_readme_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which the README's training commands ran, one after the other, and what each printed."""
    folder = tmp_path_factory.mktemp("own")
    write_image_folder(folder / "my_plants", num_species=3, pictures_per_species=12, size_px=48)
    (folder / "my_plants" / "labels.csv").unlink()
    block = re.search(r"```sh\n(python training/prepare.*?)```", section("Train it on your own folder"), re.DOTALL)
    commands = block[1].strip().splitlines()
    for command in commands[:-1]:
        flags = TINY if "train.py" in command else f"--workers {int('prepare' in command)}"
        line = command.replace("python training/", f"{sys.executable} {ROOT}/training/")
        done = subprocess.run(shlex.split(f"{line} {flags}"), check=False, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return folder, commands[-1]


@pytest.mark.timeout(300)
def test_four_commands_lead_from_a_folder_to_an_answer(trained):
    folder, serve = trained
    arguments = serve.removeprefix("python -m serving ").split()
    with running_service(folder / "log", *arguments, cwd=folder) as service:
        picture = next((folder / "my_plants").rglob("*.jpg"))
        answer = service.post("/identify", files={"image": picture.read_bytes()}).json()
    assert len(answer["predictions"]) == 3
    names = {folder.name.partition("(")[2].rstrip(")") for folder in (folder / "my_plants").iterdir()}
    assert {prediction["scientific_name"] for prediction in answer["predictions"]} == names
