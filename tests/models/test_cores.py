"""The cores of a container or a rank, not those of the machine."""

import os

import pytest

from models.cores import cores
from tests.make import cases


def cgroup(tmp_path, files, own="0::/\n"):
    for name, content in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "own").write_text(own)
    return tmp_path / "cgroup", tmp_path / "own"


@pytest.mark.parametrize(("files", "own", "expected"), cases(__file__, "cores"))
def test_available_cores_are_limited_by_the_cgroup_quota(tmp_path, monkeypatch, files, own, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert cores(*cgroup(tmp_path, files, own)) == expected


def test_the_ranks_of_a_machine_share_its_cores(monkeypatch):
    alone = cores()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert cores() == max(alone // 2, 1)
