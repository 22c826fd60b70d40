"""The Slurm array and the Kubernetes Job that share the parts of a folder."""

import pytest
import tyro

from serving.folder import Outcome
from serving.folder.command import IdentifyFolder
from tests.deploy.service_files import directives_of, failure_rules, pod_of, read_yaml
from tests.make import ROOT, fake_command, ran, with_commands


@pytest.mark.parametrize("code", [0, 1, Outcome.INTERRUPTED])
def test_a_job_of_the_array_has_its_share_and_requeues_itself_if_interrupted(code, tmp_path):
    fake_command(tmp_path, "srun", f"exit {int(code)}")
    fake_command(tmp_path, "scontrol")
    array = {"JOB_ID": "42", "TASK_ID": "3", "TASK_MIN": "1", "TASK_COUNT": "8"}
    variables = {"SLURM_SUBMIT_DIR": str(ROOT)} | {f"SLURM_ARRAY_{name}": value for name, value in array.items()}
    command = ["bash", ROOT / "deploy" / "slurm" / "identify.sbatch"]
    environment = with_commands(tmp_path, **variables)
    assert {"--requeue", "--ntasks=1", "--signal=TERM@60"} < directives_of(command[1])  # to the program: no B:
    assert ran(*command, env=environment).returncode == 64  # no photographs, no folder for the results
    flags = ("/shared/photos", "--out", "/shared/names", "--k", "3")
    assert ran(*command, *flags, env=environment, timeout=300).returncode == code
    program, *words = (tmp_path / "srun.txt").read_text().splitlines()
    assert (program, words[:2]) == (".venv/bin/python", ["-m", "serving.identify_folder"])
    folder = tyro.cli(IdentifyFolder, args=words[2:])
    assert (folder.photographs, folder.out, folder.k, folder.share()) == ("/shared/photos", "/shared/names", 3, (2, 8))
    requeued = tmp_path / "scontrol.txt"
    assert requeued.exists() == (code == Outcome.INTERRUPTED)
    assert not requeued.exists() or requeued.read_text() == "requeue\n42_3\n"


def test_the_pods_share_the_parts_and_only_an_interrupted_one_starts_again():
    job = read_yaml(ROOT / "deploy" / "kubernetes" / "identify.yaml")
    spec, (pod, container) = job["spec"], pod_of(job)
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    for index in range(spec["completions"]):  # Kubernetes puts it in
        words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in container["args"]]
        folder = tyro.cli(IdentifyFolder, args=words)
        assert folder.share() == (index, spec["completions"])
        assert (folder.photographs, folder.out.startswith(mounts["names"])) == (mounts["photos"], True)
    assert failure_rules(job) == [
        ("Ignore", [Outcome.INTERRUPTED]),
        ("Ignore", ["DisruptionTarget"]),
        ("FailJob", [2, Outcome.TOO_MANY_FAILED]),
    ]
    assert pod["restartPolicy"] == "Never"
    assert {volume["name"] for volume in pod["volumes"]} == mounts.keys()
    assert container["image"].endswith("botanify:folders")
