"""The examples in deploy/, run with fake torchrun and scheduler commands."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests.deploy.service_files import directives_of, failure_rules, pod_of
from tests.make import ROOT, fake_command, from_table, ran, with_commands
from tests.training.small import events
from tests.waiting import wait_until
from training.train import parse

DEPLOY = ROOT / "deploy"
LAUNCHER = DEPLOY / "torchrun.sh"
RESTART = 75


def arguments_of(folder, name):
    return (folder / f"{name}.txt").read_text().splitlines()


def launch(folder, run, body):
    """Returns the exit code of torchrun.sh with a fake torchrun that runs the shell line."""
    fake_command(folder, "torchrun", body)
    command = [LAUNCHER, run, "--standalone", "--nproc-per-node", "2", "--", "debug", "--epochs", "3"]
    return ran(*command, env=with_commands(folder), timeout=300).returncode


def parse_torchrun(arguments):
    """Parses a command line of torchrun with the parsers of torchrun and train.py."""
    options = get_args_parser().parse_args(arguments)
    assert options.training_script == "training/train.py"
    assert (ROOT / options.training_script).is_file()
    rest = options.training_script_args
    return options, parse(rest[1:] if rest[0] == "--" else rest)


def shutdown_timeout_s():
    """Seconds between SIGTERM and SIGKILL in torchrun.sh."""
    return int(re.search(r"TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-(\d+)", LAUNCHER.read_text()).group(1))


def test_launcher_passes_valid_arguments_to_torchrun_and_train(tmp_path):
    has_time_to_stop = f"exit $((TORCH_ELASTIC_SHUTDOWN_TIMEOUT != {shutdown_timeout_s()}))"
    assert launch(tmp_path, tmp_path / "run", has_time_to_stop) == 0
    options, command = parse_torchrun(arguments_of(tmp_path, "torchrun"))
    assert (options.standalone, options.nproc_per_node) == (True, "2")
    assert (str(command.recipe_file), command.recipe.schedule.epochs) == ("debug", 3)
    assert command.recipe.run.run == tmp_path / "run"
    assert command.auto_resume


@from_table
def test_failed_run_is_restarted_only_if_its_log_ends_with_an_interruption(told, code, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "log.jsonl").write_text('{"event":"interrupted","time":1}\n')  # from an earlier start
    lines = "".join(f"""echo '{{"event":"{event}","time":2}}' >> {run}/log.jsonl; """ for event in told)
    assert launch(tmp_path, run, lines + "exit 1") == code


def test_sigterm_reaches_torchrun_and_asks_for_a_restart(tmp_path):
    wait_for_sigterm = (
        f"trap 'touch {tmp_path}/received; exit 1' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    )
    fake_command(tmp_path, "torchrun", wait_for_sigterm)
    command = [LAUNCHER, tmp_path / "run", "--standalone", "--", "debug"]
    with subprocess.Popen(command, cwd=ROOT, env=with_commands(tmp_path)) as process:
        wait_until((tmp_path / "ready").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == RESTART
    assert (tmp_path / "received").exists()


@from_table
def test_wrong_command_line_exits_with_a_code_of_its_own(arguments):
    done = ran(LAUNCHER, *arguments, timeout=300)
    assert done.returncode == 64
    assert done.stderr.startswith("usage: ")


@pytest.mark.parametrize("code", [0, 1, RESTART])
def test_slurm_job_requeues_itself_only_for_a_restart(code, tmp_path):
    fake_command(tmp_path, "scontrol", 'if [[ $1 == show ]]; then printf "gpu07\\ngpu08\\n"; fi')
    fake_command(tmp_path, "srun", f"exit {code}")
    more = {"SLURM_JOB_ID": "4242", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "gpu[07-08]"}
    command = ["bash", DEPLOY / "slurm" / "train.sbatch", "b4_5337", "--data", "/shared/packed"]
    assert ran(*command, env=with_commands(tmp_path, SLURM_SUBMIT_DIR=str(ROOT), **more)).returncode == code
    assert (arguments_of(tmp_path, "scontrol")[0] == "requeue") == (code == RESTART)
    end_of_one, launcher, run, *rest = arguments_of(tmp_path, "srun")
    assert end_of_one == "--kill-on-bad-exit=0"  # the other machines save their checkpoints
    fake_command(tmp_path, "torchrun")
    ran(ROOT / launcher, run, *rest, env=with_commands(tmp_path), timeout=300, check=True)
    options, command = parse_torchrun(arguments_of(tmp_path, "torchrun"))
    assert (options.nnodes, options.rdzv_backend, options.rdzv_id) == ("2", "c10d", "4242")
    assert options.rdzv_endpoint.startswith("gpu07:")
    assert (str(command.recipe_file), str(command.recipe.data.data)) == ("b4_5337", "/shared/packed")


def test_slurm_signals_early_enough_before_the_time_limit():
    directives = directives_of(DEPLOY / "slurm" / "train.sbatch")
    assert {"--requeue", "--ntasks-per-node=1"} < directives  # torchrun starts the ranks
    (signal_s,) = (int(each.removeprefix("--signal=TERM@")) for each in directives if each.startswith("--signal"))
    assert signal_s > shutdown_timeout_s()


def test_kubernetes_job_restarts_and_its_pods_connect(tmp_path):
    service, job = yaml.safe_load_all((DEPLOY / "kubernetes" / "train.yaml").read_text(encoding="utf-8"))
    spec = job["spec"]
    pod, container = pod_of(job)
    assert failure_rules(job) == [("Ignore", [RESTART]), ("Ignore", ["DisruptionTarget"]), ("FailJob", [64])]
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] > shutdown_timeout_s()
    assert service["spec"]["publishNotReadyAddresses"]  # they meet before one is ready
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}
    fake_command(tmp_path, "torchrun")
    command = [ROOT / container["command"][0], *container["args"]]
    ran(*command, env=with_commands(tmp_path), timeout=300, check=True)
    options, trained = parse_torchrun(arguments_of(tmp_path, "torchrun"))
    name = job["metadata"]["name"]
    assert int(options.nnodes) == spec["completions"] == spec["parallelism"]
    assert options.rdzv_endpoint.startswith(f"{name}-0.{pod['subdomain']}:")
    assert pod["subdomain"] == service["metadata"]["name"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(trained.recipe.data.data) == mounts["data"]
    assert trained.recipe.run.run.is_relative_to(mounts["runs"])
    assert mounts["shared-memory"] == "/dev/shm"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_run_of_two_ranks_stops_at_sigterm_and_resumes(tmp_path):
    run = tmp_path / "run"
    environment = with_commands(Path(sys.executable).parent, OMP_NUM_THREADS="1")
    flags = ["--standalone", "--nproc-per-node", "2", "--", "debug", "--data", tmp_path / "data", "--epochs", "5000"]
    command = [LAUNCHER, run, *flags]
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        wait_until((run / "last.pt").exists, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == RESTART
    (stopped,) = events(run, "interrupted")
    ran(*command, "--max-steps", "2", env=environment, timeout=200, check=True)
    assert [event["step"] for event in events(run, "resume")] == [stopped["step"]]
    assert [event["step"] for event in events(run, "end")] == [stopped["step"] + 2]
