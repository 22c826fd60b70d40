"""Parts on a Ray cluster: machines that die or freeze lose no row and write none twice."""

import signal
import socket
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path

import numpy as np
import psutil
import pytest

from models.errors import InputError
from serving.folder import Outcome
from serving.folder.cluster import task_needs
from serving.folder.command import IdentifyFolder
from tests.serving.folder.photograph_folder import draw_photographs, identify, parts, rows_of, start
from tests.serving.tiny import BLUE, GREEN, RED, WEIGHTS
from tests.waiting import wait_until

PART_ROWS = 5
ONE_CORE = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
# Ray takes a machine for dead after some 15 s without an answer. Of the three here, each is slow if this one is busy.
QUICK_CHECKS = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
    "grpc_client_keepalive_time_ms": 2000,
    "grpc_client_keepalive_timeout_ms": 3000,
}


def test_a_task_takes_a_core_or_a_gpu_with_its_share_of_the_cores():
    nodes = [{"CPU": 64, "GPU": 4}, {"CPU": 12, "GPU": 1}, {"CPU": 8}, {}]
    assert task_needs(nodes, "cpu") == {"num_cpus": 1}
    assert task_needs(nodes, "cuda") == {"num_cpus": 12, "num_gpus": 1}
    assert task_needs([{"CPU": 2, "GPU": 4}], "cuda") == {"num_cpus": 1, "num_gpus": 1}
    with pytest.raises(InputError, match="no machine of the Ray cluster has a GPU"):
        task_needs([{"CPU": 8}], "cuda")


def test_other_processes_find_the_same_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = IdentifyFolder(photographs="../photos", out="s3://a/b", bundle=Path("bundle")).with_absolute_paths()
    assert (found.photographs, found.bundle, found.taxa_lists) == (
        str(tmp_path.parent / "photos"),
        tmp_path / "bundle",
        None,
    )
    assert IdentifyFolder(photographs="s3://a", out="b").with_absolute_paths().photographs == "s3://a"


def test_without_ray_the_error_says_what_to_install(monkeypatch, tmp_path, bundle_folder):
    monkeypatch.setitem(sys.modules, "ray", None)
    photographs = draw_photographs(tmp_path / "photographs", {"a.jpg": RED})
    with pytest.raises(InputError, match=r"install --editable '\.\[ray\]'"):
        identify(photographs, tmp_path / "out", bundle_folder, ray="auto")


# ---- a real cluster


@pytest.fixture
def cluster(monkeypatch):
    """Three machines with a core each: processes of this machine."""
    pytest.importorskip(
        "ray", reason="needs Ray: python -m uv pip install --constraints requirements.lock --editable '.[ray]'"
    )
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # pytest's own is too long for the name of a socket
        monkeypatch.setenv("RAY_TMPDIR", folder)
        Path(folder, "ray").mkdir()  # where Ray notes the address, whatever its temp_dir
        cluster = Cluster()
        try:
            cluster.add_node(**ONE_CORE, **ports(), _system_config=QUICK_CHECKS)
            cluster.add_node(**ONE_CORE, **ports())
            cluster.add_node(**ONE_CORE, **ports())
            yield cluster
        finally:
            left = [process for node in cluster.list_all_nodes() for process in processes_of(node)]
            cluster.shutdown()
            send(left, signal.SIGKILL)  # it does not end what a frozen machine has started


def ports():
    """Ray chooses ports of its own otherwise, and waits for them no longer than 15 s, which a busy machine exceeds."""
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    with ExitStack() as sockets:
        bound = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        return {name: each.getsockname()[1] for name, each in zip(names, bound, strict=True)}


def processes_of(node):
    """Returns the processes of a machine: Ray's own, and those that it has started."""
    found = []
    for started in chain.from_iterable(node.all_processes.values()):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(started.process.pid)
            found += [process, *process.children(recursive=True)]
    return found


def send(processes, number):
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@contextmanager
def running(cluster, *folders):
    """Runs the program on a cluster."""
    process = start(*folders, "--ray", cluster.address, part_rows=PART_ROWS)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_dead(cluster, node):
    return not next(each for each in cluster.global_state.node_table() if each["NodeID"] == node.node_id)["Alive"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("thaw", ["at once", "when Ray has given it up", "after the end"])
def test_a_machine_that_dies_and_one_that_freezes_lose_no_row(cluster, tmp_path, bundle_folder, thaw):
    num_photographs, out = 2000, tmp_path / "out"
    colors = {f"{index:04d}.jpg": (RED, GREEN, BLUE)[index % 3] for index in range(num_photographs)}
    photographs = draw_photographs(tmp_path / "photographs", colors)
    dies, freezes = cluster.worker_nodes
    frozen = []
    with running(cluster, photographs, out, bundle_folder) as process:
        wait_until(lambda: len(parts(out)) >= 30, process)
        frozen += processes_of(freezes)
        send(frozen, signal.SIGSTOP)
        wait_until(lambda: len(parts(out)) >= 60, process)
        send(processes_of(dies), signal.SIGKILL)
        wait_until(lambda: is_dead(cluster, dies), process)
        if thaw == "when Ray has given it up":
            wait_until(lambda: is_dead(cluster, freezes), process)
        if thaw != "after the end":
            send(frozen, signal.SIGCONT)
        code, before = process.wait(600), parts(out)
    assert code == Outcome.COMPLETE
    send(frozen, signal.SIGCONT)
    psutil.wait_procs([each for each in frozen if is_dead(cluster, freezes)], timeout=300)
    assert len(rows_of(out)) == num_photographs
    assert len(before) == num_photographs / PART_ROWS
    assert parts(out) == before, "a part was written twice"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_interrupted_run_continues_with_or_without_the_cluster(cluster, tmp_path, bundle_folder):
    out = tmp_path / "out"
    photographs = draw_photographs(tmp_path / "photographs", {f"{index:03d}.jpg": GREEN for index in range(500)})
    with running(cluster, photographs, out, bundle_folder) as process:
        wait_until(lambda: len(parts(out)) >= 10, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == Outcome.INTERRUPTED
    before = parts(out)
    assert len(before) < 100
    assert identify(photographs, out, bundle_folder, part_rows=PART_ROWS) == Outcome.COMPLETE
    assert len(rows_of(out)) == 500
    assert parts(out).items() >= before.items()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_fails_on_a_machine_of_the_cluster_is_one_error(cluster, sealed, tmp_path, bundle_folder):
    photographs = draw_photographs(tmp_path / "photographs", {"a.jpg": RED})
    with pytest.raises(InputError, match="logits are not finite"):
        identify(photographs, tmp_path / "out", sealed(weights=WEIGHTS * np.nan), ray=cluster.address)
    with pytest.raises(InputError, match="no Ray cluster can be reached"):
        identify(photographs, tmp_path / "other", bundle_folder, ray="127.0.0.1:1")
