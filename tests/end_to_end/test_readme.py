"""README.md agrees with the project: its map with the disk, its figures with the results, its commands by running."""

import contextlib
import json
import math
import re
import shlex
import shutil
import statistics
import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks.serving.process_tree import free_port
from serving.settings import Settings
from tests.docs.pages import DOCS, shell_blocks
from tests.make import ROOT, main_of, project_files
from tests.serving.program import service
from training.drawn import Drawn, write_class_folders

README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
# So small that it runs anywhere; everything else is as written.
TINY = (
    "--architecture test_efficientnet --weights none --device cpu --workers 0 --epochs 1 --batch-size 4 "
    "--picture-px 32 --progressive --serve-px 32 --cutmix 0 --randaugment-magnitude 0"
)


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def folders_on_disk() -> set[str]:
    parents = {path.parent.relative_to(ROOT) for path in project_files()}
    names = {"/".join(parent.parts[:depth]) for parent in parents for depth in (1, 2) if len(parent.parts) >= depth}
    return {name for name in names if "/" not in name or name.startswith("training/")} - {".ci"}


def test_readme_is_short():
    assert len(README.splitlines()) <= 180


def test_map_has_one_line_for_each_folder():
    lines = re.findall(r"^([\w/]+)/ {2,}\S", section("The map"), re.MULTILINE)
    assert len(lines) == len(set(lines))
    assert set(lines) == folders_on_disk()


def shown(words: str) -> str:
    return next(row for row in section("What was measured").splitlines() if words in row)


def result(name: str, device: str = "amd-epyc-2-cores") -> dict:
    return json.loads((RESULTS / device / f"{name}.json").read_bytes())


def test_accuracy_is_that_of_the_result_on_own_sources_and_elsewhere():
    own, other = result("same_photographs", "intel-xeon-2-cores")["known"][:2]
    for part, row in (("top1", "right plant first"), ("named", "names them"), ("names_right", "names them")):
        assert f"{100 * own[part]['value']:.1f} %" in shown(row)
        assert f"{100 * other[part]['value']:.1f} %" in shown(row)


def test_speed_of_the_loader_is_that_of_the_result():
    small = [each for each in result("loader")["comparisons"] if each["pictures"] == "small"]
    factors = []
    for each in small:
        per_core = {rate["variant"]: rate["per_core_s"] for rate in each["rates"]}
        pairs = zip(per_core["shards"], per_core["timm"], strict=True)
        factors.append(statistics.median(ours / timm for ours, timm in pairs))
    assert f"{min(factors):.1f} to {max(factors):.1f} times" in shown("Preparing")


def rates_of_12_mp(server: str, decoding: str) -> list[float]:
    contender = {"server": server, "decoding": decoding}
    (figures,) = (each for each in result("serving")["figures"] if each["contender"] == contender)
    cells = [cell for turn in figures["turns"] for cell in turn["cells"]]
    return [cell["per_s"] for cell in cells if (cell["photograph"], cell["concurrency"]) == ("12 MP", 8)]


def test_speed_of_the_service_is_that_of_the_result():
    ours, rival = rates_of_12_mp("ours", "reduced"), rates_of_12_mp("LitServe", "full")
    factor = statistics.median(one / other for one, other in zip(ours, rival, strict=True))
    assert f"{statistics.median(ours):.1f} answers/s" in shown("12 MP")
    assert f"{factor:.1f} times as many as LitServe" in shown("12 MP")


def test_overload_is_that_of_the_result_for_the_service_and_each_rival():
    row = shown("Overload")
    for each in result("serving_overload")["servers"]:
        (burst,) = each["bursts"]
        rate, share = burst["good_per_s"], 100 * burst["good_per_s"] / burst["capacity_per_s"]
        server = each["contender"]["server"]
        words = (
            f"{rate:.1f} answers/s, {share:.0f} % of"
            if server == "ours"
            else f"{server} [a-z ]*{rate:.1f} \\({share:.0f} %"
        )
        assert re.search(words, row), server
    assert "one round" in row


def test_memory_is_that_of_the_result_here_and_where_it_is_operated():
    measured = result("serving_memory")
    life, flood = measured["life"], measured["flood"]
    row, page = shown("Memory"), (DOCS / "operate.md").read_text(encoding="utf-8")
    assert f"{life['warm_mb']:.0f} MB after {life['requests'] // 10:,} requests" in row
    assert f"{life['end_mb']:.0f} MB after {life['requests']:,}" in row
    for text in (row, page, (ROOT / "deploy/service/README.md").read_text(encoding="utf-8")):
        assert f"at most {flood['high_water_mb']:.0f} MB" in text
    for text in (row, page):
        assert f"{flood['idle_mb']:.0f} " in text
        assert f"{flood['after_mb']:.0f} MB stay" in text


def assert_shown(shown: object, answer: object, place: str = "answer") -> None:
    """The page shows a part of the answer: numbers are rounded, and a text may end with three dots."""
    if isinstance(shown, dict):
        for name, value in shown.items():
            assert name in answer, place
            assert_shown(value, answer[name], f"{place}.{name}")
    elif isinstance(shown, list):
        assert bool(shown) == bool(answer), place
        for number, value in enumerate(shown):
            assert_shown(value, answer[number], f"{place}[{number}]")
    elif isinstance(shown, str):
        assert answer.startswith(shown.removesuffix("…")) if shown.endswith("…") else answer == shown, place
    else:
        assert answer == pytest.approx(shown, abs=2e-3), place


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.timeout(300)
def test_the_first_command_answers_what_the_page_shows_to_one_who_asks_before_it_is_ready():
    port = str(free_port())
    asked = next(line for block in shell_blocks(ROOT / "README.md") for line in block if line.startswith("curl "))
    ask = shlex.split(asked.replace(":8000/", f":{port}/"))
    with subprocess.Popen(ask, cwd=ROOT, stdout=subprocess.PIPE) as curl, service(None, "--port", port):
        answer = json.loads(curl.communicate(timeout=200)[0])
    shown = re.search(r"^```json\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[1].replace(", …", "")
    assert_shown(json.loads(shown), answer)


@pytest.mark.parametrize(("people", "digits"), [(1_000, 1), (100_000, 2)])
def test_sizes_for_a_number_of_people_follow_from_the_measured_rate(people, digits):
    def rounded(value: float) -> str:
        return f"{float(f'{value:.{digits}g}'):g}"

    page = " ".join((DOCS / "operate.md").read_text(encoding="utf-8").split())
    (size,) = (each["num_bytes"] for each in result("serving")["photographs"] if each["name"] == "12 MP")
    assert f"each sends five photographs of 12 MP ({size / 1e6:.1f} MB) a day, a fifth of them in the busiest" in page
    assert "one answer in 50 is corrected" in page
    per_s = 5 * people / 5 / 3600
    machines = math.ceil(per_s / (0.6 * statistics.median(rates_of_12_mp("ours", "reduced"))))
    corrected_gb = 5 * people / 50 * size / 1e9
    limit_gb = Settings().corrections_bytes / 1e9
    kept = {
        1_000: f"the {limit_gb:g} GB of `--corrections-bytes` last {rounded(limit_gb / corrected_gb / 7)} weeks",
        100_000: f"{rounded(30 * corrected_gb)} GB with `--corrections-days 30` and `--corrections-bytes` raised",
    }
    cells = [
        f"{people:,}",
        f"{rounded(per_s)} per second",
        f"{machines}, or {machines + 1} so that one may fail",
        f"{rounded(per_s * size * 8 / 1e6)} Mbit/s",
        f"{rounded(corrected_gb)} GB a day: {kept[people]}",
    ]
    assert f"| {' | '.join(cells)} |" in page
    assert "machines of 2 cores, at most 60 % busy" in page


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which the README's training commands ran, one after the other, and the command that serves."""
    folder = tmp_path_factory.mktemp("own")
    write_class_folders(Drawn(out=folder / "my_plants", species=3, pictures=12, size_px=48))
    commands = next(block for block in shell_blocks(ROOT / "README.md") if "prepare.py folder" in block[0])
    for command in commands[:-1]:
        run(command, folder)
    return folder, commands[-1]


def run(command: str, folder: Path, training: str = TINY) -> None:
    """Runs a command as a page has it, in this process; a training by a recipe of the project gets further flags."""
    flags = {"prepare.py": "--workers 1", "evaluate.py": "--workers 0", "train.py own_folder": training}
    added = " ".join(words for start, words in flags.items() if command.startswith(f"python training/{start}"))
    program, *arguments = shlex.split(f"{command.removeprefix('python ').removeprefix('-m ')} {added}")
    with patch("sys.argv", [program, *arguments]), contextlib.chdir(folder):
        main_of(program)()


@pytest.mark.timeout(300)
def test_four_commands_lead_from_a_folder_to_an_answer(trained):
    folder, serve = trained
    arguments = serve.removeprefix("python -m serving ").split()
    with service(None, *arguments, cwd=folder) as running, running.client() as client:
        picture = next((folder / "my_plants").rglob("*.jpg"))
        answer = client.post("/identify", files={"image": picture.read_bytes()}).json()
    assert len(answer["predictions"]) == 3
    names = {folder.name.partition("(")[2].rstrip(")") for folder in (folder / "my_plants").iterdir()}
    assert {prediction["scientific_name"] for prediction in answer["predictions"]} == names


@pytest.mark.timeout(300)
def test_evaluation_in_the_documentation_runs_on_the_same_data(trained):
    folder, _ = trained
    command = next(line for block in shell_blocks(DOCS / "train.md") for line in block if "evaluate.py" in line)
    run(command, folder)
