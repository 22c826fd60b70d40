"""The examples under deploy/, run with stand-ins for torchrun and the schedulers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from training.train import parse

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
LAUNCHER = DEPLOY / "torchrun.sh"
COME_BACK = 75


def stand_in(folder, name, body):
    """An executable that notes its arguments in NAME.txt and does what the shell line says."""
    (folder / name).write_text(f"#!/usr/bin/env bash\nprintf '%s\\n' \"$@\" > {folder}/{name}.txt\n{body}\n")
    (folder / name).chmod(0o755)


def arguments_of(folder, name):
    return (folder / f"{name}.txt").read_text().splitlines()


def environment(folder, **more):
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"} | more


def launch(folder, run, body):
    """Exit code of the launcher around a torchrun that does what the shell line says."""
    stand_in(folder, "torchrun", body)
    command = [LAUNCHER, run, "--standalone", "--nproc-per-node", "2", "--", "debug", "--epochs", "3"]
    return subprocess.run(command, cwd=ROOT, env=environment(folder), timeout=60, check=False).returncode


def require_understood(arguments):
    """Holds what torchrun was given against torchrun's own parser and that of train.py."""
    options = get_args_parser().parse_args(arguments)
    assert options.training_script == "training/train.py"
    assert (ROOT / options.training_script).is_file()
    rest = options.training_script_args
    return options, parse(rest[1:] if rest[0] == "--" else rest)


def manifests():
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "train.yaml").read_text(encoding="utf-8")))


def patience_s():
    """Seconds that torchrun has between SIGTERM and SIGKILL."""
    return int(re.search(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-(\d+)", LAUNCHER.read_text()).group(1))


@pytest.mark.parametrize("script", ["torchrun.sh", "slurm/train.sbatch"])
def test_scripts_are_sound_bash(script):
    subprocess.run(["bash", "-n", DEPLOY / script], check=True)
    assert os.access(DEPLOY / "torchrun.sh", os.X_OK)


def test_the_launcher_hands_torchrun_and_the_program_what_they_understand(tmp_path):
    assert launch(tmp_path, tmp_path / "run", "exit 0") == 0
    options, command = require_understood(arguments_of(tmp_path, "torchrun"))
    assert (options.standalone, options.nproc_per_node) == (True, "2")
    assert (command.recipe.name, command.recipe.schedule.epochs) == ("debug", 3)
    assert command.recipe.run.run == tmp_path / "run"
    assert command.auto_resume


@pytest.mark.parametrize(
    ("events", "code"),
    [
        (["start", "interrupted"], COME_BACK),
        (["start", "diverged"], 1),
        (["start"], 1),  # killed, and torchrun gave up
        (["start", "interrupted", "resume"], 1),  # went on, and failed then
        ([], 1),
    ],
)
def test_a_failure_is_a_reason_to_come_back_only_where_the_diary_says_so(events, code, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "log.jsonl").write_text('{"event":"interrupted","time":1}\n')  # of the time before
    lines = "".join(f"""echo '{{"event":"{event}","time":2}}' >> {run}/log.jsonl; """ for event in events)
    assert launch(tmp_path, run, lines + "exit 1") == code


def test_a_finished_run_does_not_come_back(tmp_path):
    assert launch(tmp_path, tmp_path / "run", "exit 0") == 0


def test_sigterm_reaches_torchrun_and_makes_the_launcher_come_back(tmp_path):
    waits = f"trap 'touch {tmp_path}/asked; exit 1' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    stand_in(tmp_path, "torchrun", waits)
    command = [LAUNCHER, tmp_path / "run", "--standalone", "--", "debug"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(tmp_path)) as process:
        wait_for(tmp_path / "ready")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == COME_BACK
    assert (tmp_path / "asked").exists()


@pytest.mark.parametrize("arguments", [[], ["--standalone"], ["run", "--standalone"], ["run", "--"]])
def test_a_wrong_command_line_is_told_apart(arguments):
    done = subprocess.run([LAUNCHER, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 64
    assert done.stderr.startswith("usage: ")


@pytest.mark.parametrize("code", [0, 1, COME_BACK])
def test_a_slurm_job_requeues_itself_only_to_come_back(code, tmp_path):
    stand_in(tmp_path, "scontrol", 'if [[ $1 == show ]]; then printf "gpu07\\ngpu08\\n"; fi')
    stand_in(tmp_path, "srun", f"exit {code}")
    more = {"SLURM_JOB_ID": "4242", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "gpu[07-08]"}
    done = subprocess.run(
        ["bash", DEPLOY / "slurm" / "train.sbatch", "b4_5337", "--data", "/shared/packed"],
        env=environment(tmp_path, SLURM_SUBMIT_DIR=str(ROOT), **more),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert (arguments_of(tmp_path, "scontrol")[0] == "requeue") == (code == COME_BACK)
    _, launcher, run, *rest = arguments_of(tmp_path, "srun")
    stand_in(tmp_path, "torchrun", "exit 0")
    subprocess.run([ROOT / launcher, run, *rest], cwd=ROOT, env=environment(tmp_path), timeout=60, check=True)
    options, command = require_understood(arguments_of(tmp_path, "torchrun"))
    assert (options.nnodes, options.rdzv_backend, options.rdzv_id) == ("2", "c10d", "4242")
    assert options.rdzv_endpoint.startswith("gpu07:")
    assert (command.recipe.name, str(command.recipe.data.data)) == ("b4_5337", "/shared/packed")


def test_slurm_warns_long_enough_ahead():
    script = (DEPLOY / "slurm" / "train.sbatch").read_text()
    assert int(re.search(r"^#SBATCH --signal=TERM@(\d+)$", script, re.MULTILINE).group(1)) > patience_s()
    assert re.search(r"^#SBATCH --requeue$", script, re.MULTILINE)
    assert re.search(r"^#SBATCH --ntasks-per-node=1$", script, re.MULTILINE)  # torchrun starts the ranks


def test_a_kubernetes_job_comes_back_and_its_pods_find_one_another(tmp_path):
    service, job = manifests()
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    ignored = [rule.get("onExitCodes") for rule in spec["podFailurePolicy"]["rules"] if rule["action"] == "Ignore"]
    assert {"containerName": container["name"], "operator": "In", "values": [COME_BACK]} in ignored
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] > patience_s()
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}
    stand_in(tmp_path, "torchrun", "exit 0")
    command = [ROOT / container["command"][0], *container["args"]]
    subprocess.run(command, cwd=ROOT, env=environment(tmp_path), timeout=60, check=True)
    options, trained = require_understood(arguments_of(tmp_path, "torchrun"))
    name = job["metadata"]["name"]
    assert int(options.nnodes) == spec["completions"] == spec["parallelism"]
    assert options.rdzv_endpoint.startswith(f"{name}-0.{pod['subdomain']}:")
    assert pod["subdomain"] == service["metadata"]["name"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(trained.recipe.data.data) == mounts["data"]
    assert trained.recipe.run.run.is_relative_to(mounts["runs"])
    assert mounts["shared-memory"] == "/dev/shm"


def test_the_training_image_copies_what_there_is():
    lines = (DEPLOY / "kubernetes" / "Dockerfile.train").read_text().splitlines()
    copied = [path for line in lines if line.startswith("COPY") and "--from" not in line for path in line.split()[1:-1]]
    assert {"models/", "training/", "deploy/torchrun.sh"} <= set(copied)
    assert all((ROOT / path).exists() for path in copied)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_of_two_ranks_stops_at_sigterm_and_goes_on_when_started_again(tmp_path):
    run, data = tmp_path / "run", tmp_path / "data"
    more = {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [LAUNCHER, run, "--standalone", "--nproc-per-node", "2", "--", "debug", "--data", data]
    with subprocess.Popen([*command, "--epochs", "5000"], cwd=ROOT, env=os.environ | more) as process:
        wait_for(run / "last.pt", seconds=200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == COME_BACK
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "interrupted"
    stopped_at = events[-1]["step"]
    again = [*command, "--epochs", "5000", "--max-steps", "2"]
    subprocess.run(again, cwd=ROOT, env=os.environ | more, timeout=200, check=True)
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "resume"] == [stopped_at]
    assert (events[-1]["event"], events[-1]["step"]) == ("end", stopped_at + 2)


def wait_for(path, seconds=30):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.05)
