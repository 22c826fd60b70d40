"""torchrun restarts a killed rank, and the run resumes from its last checkpoint."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.training.small import ROOT, events, losses_by_step, require_same_steps
from tests.waiting import wait_until

DEBUG = ROOT / "training" / "recipes" / "debug.toml"
EPOCHS = 10  # of 4 species x 8 pictures: 2 steps each on two ranks of 8


def start(folder, *flags):
    """Starts two ranks with torchrun, on drawn data."""
    arguments = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments += [*map(str, flags), "--", str(ROOT / "training" / "train.py"), str(DEBUG), "--epochs", str(EPOCHS)]
    arguments += ["--data", str(folder / "data"), "--run", str(folder / "run"), "--checkpoint-every-steps", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (folder / "output").open("w") as output:
        return subprocess.Popen(arguments, env=environment, stdout=output, stderr=subprocess.STDOUT)


def trainers(agent):
    """The processes of the ranks."""
    return [child for child in psutil.Process(agent.pid).children() if "train.py" in " ".join(child.cmdline())]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_rank_is_restarted_and_the_run_resumes_exactly(tmp_path):
    for name in ("whole", "run"):
        (tmp_path / name).mkdir()
    with start(tmp_path / "whole") as agent:
        assert agent.wait() == 0, (tmp_path / "whole" / "output").read_text()
    whole, run = tmp_path / "whole" / "run", tmp_path / "run" / "run"

    with start(tmp_path / "run", "--max-restarts", 3) as agent:
        log = run / "log.jsonl"
        assert wait_until(lambda: log.exists() and any(e["step"] >= 4 for e in events(run, "checkpoint")), agent)
        trainers(agent)[1].send_signal(signal.SIGKILL)
        assert agent.wait() == 0, (tmp_path / "run" / "output").read_text()

    (resumed,) = events(run, "resume")
    assert resumed["step"] >= 4
    assert sorted(losses_by_step(run)) == list(range(1, 2 * EPOCHS + 1))
    require_same_steps(run, whole)
    assert events(run, "end")[-1]["epoch"] == EPOCHS
