"""The Slurm array and the Kubernetes Job that share the parts of a folder."""

import shlex

import pytest
import tyro

from serving.folder import Outcome
from serving.folder.command import IdentifyFolder
from tests.deploy.service_files import pod_of, read_yaml
from tests.deploy.tools import schemas
from tests.make import ROOT, fake_command, ran, with_commands
from tests.serving.folder.photograph_folder import draw_photographs, program, rows_of
from tests.serving.tiny import GREEN

SLURM = ROOT / "deploy" / "slurm" / "identify.sbatch"
MANIFEST = ROOT / "deploy" / "kubernetes" / "identify.yaml"


@pytest.fixture(scope="module")
def job():
    return read_yaml(MANIFEST)


def submit(folder, index, count, srun, *arguments):
    """Runs a job of the array with fake commands of Slurm; returns its exit code."""
    fake_command(folder, "srun", srun)
    fake_command(folder, "scontrol")
    variables = {
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_ARRAY_JOB_ID": "42",
        "SLURM_ARRAY_TASK_ID": str(index + 1),
        "SLURM_ARRAY_TASK_MIN": "1",
        "SLURM_ARRAY_TASK_COUNT": str(count),
    }
    return ran("bash", SLURM, *arguments, env=with_commands(folder, **variables), timeout=300).returncode


@pytest.mark.parametrize("code", [0, 1, Outcome.INTERRUPTED])
def test_a_job_of_the_array_has_its_share_and_requeues_itself_if_interrupted(code, tmp_path):
    flags = ("/shared/photos", "--out", "/shared/names", "--k", "3")
    assert submit(tmp_path, 2, 8, f"exit {int(code)}", *flags) == code
    program, *words = (tmp_path / "srun.txt").read_text().splitlines()
    assert (program, words[:2]) == (".venv/bin/python", ["-m", "serving.identify_folder"])
    command = tyro.cli(IdentifyFolder, args=words[2:])
    assert (command.photographs, command.out, command.k) == ("/shared/photos", "/shared/names", 3)
    assert command.share() == (2, 8)
    requeued = tmp_path / "scontrol.txt"
    assert requeued.exists() == (code == Outcome.INTERRUPTED)
    assert not requeued.exists() or requeued.read_text() == "requeue\n42_3\n"


def test_a_wrong_command_line_ends_the_job_at_once(tmp_path):
    assert submit(tmp_path, 0, 1, "exit 0") == 64


@pytest.mark.slow
def test_an_array_makes_one_table(sealed, tmp_path):
    photographs = draw_photographs(tmp_path / "photos", {f"{index}.jpg": GREEN for index in range(60)})
    arguments = [photographs, "--out", tmp_path / "out", "--bundle", sealed()]
    srun = f'shift 3; exec {shlex.join(program(2))} "$@"'
    for index in (2, 0, 1):
        assert not (tmp_path / "out" / "results.parquet").exists()
        assert submit(tmp_path, index, 3, srun, *arguments) == 0
    assert len(rows_of(tmp_path / "out")) == 60


def test_the_pods_share_the_parts(job):
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
    for index in range(spec["completions"]):  # Kubernetes puts it in
        words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in pod_of(job)[1]["args"]]
        assert tyro.cli(IdentifyFolder, args=words).share() == (index, spec["completions"])


def test_an_interrupted_pod_starts_again_and_a_broken_run_does_not(job):
    rules = job["spec"]["podFailurePolicy"]["rules"]
    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert codes == {"Ignore": [Outcome.INTERRUPTED], "FailJob": [2, Outcome.TOO_MANY_FAILED]}


def test_a_pod_has_the_volumes_and_the_image_of_the_program(job):
    pod, container = pod_of(job)
    assert pod["restartPolicy"] == "Never"
    assert {volume["name"] for volume in pod["volumes"]} == {each["name"] for each in container["volumeMounts"]}
    assert container["image"].endswith("botanify:folders")
    assert "FROM program AS folders" in (ROOT / "Dockerfile").read_text()
    schemas().validate(job, "1.31", strict=True)
