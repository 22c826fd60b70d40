"""Photographs and results in a bucket, on a server that answers as S3 does."""

import io

import fsspec
import pyarrow.parquet as pq
import pytest

from models.errors import DataError
from serving.folder import Outcome
from serving.folder.output import open_output
from serving.folder.photographs import open_store
from tests.serving.folder.photograph_folder import identify, start
from tests.serving.program import ENVIRONMENT
from tests.serving.tiny import GREEN, RED, jpeg
from tests.waiting import wait_until

NUM_PHOTOGRAPHS = 60


@pytest.fixture(scope="module")
def s3():
    """The variables for S3's clients, and an empty bucket named garden."""
    needs = "needs an S3 server: pip install s3fs 'moto[server]'"
    pytest.importorskip("s3fs", reason=needs)
    server = pytest.importorskip("moto.server", reason=needs).ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        files = fsspec.filesystem("s3", use_listings_cache=False)
        files.mkdir("garden")
        yield variables, files
    server.stop()


def parts(files, out):
    return {each["name"]: (each["ETag"], each["LastModified"]) for each in files.ls(f"{out}/parts", detail=True)}


@pytest.mark.slow
def test_what_one_machine_writes_another_one_reads(s3):
    here, there = (open_output("s3://garden/output") for _ in range(2))
    assert here.names("parts") == []
    assert here.read("parts/a") is None
    here.write("parts/a", b"first")
    assert there.read("parts/a") == b"first"
    here.replace("parts/a", io.BytesIO(b"second"))
    assert there.read("parts/a") == b"second"
    assert there.names("parts") == ["a"]


@pytest.mark.slow
def test_what_a_store_refuses_is_an_error_of_files(s3, monkeypatch):
    with pytest.raises(OSError, match="does not exist"):
        open_output("s3://nobodys-garden/output").write("a", b"")
    with pytest.raises(FileNotFoundError):
        open_store("s3://garden").read("gone.jpg", 10)
    s3[1].pipe_file("garden/empty.jpg", b"")
    with pytest.raises(OSError, match=r"."):
        open_store("s3://garden").read("empty.jpg", 10)
    assert open_store("s3://garden").read("empty.jpg") == b""
    with pytest.raises(DataError, match="correct the address"):
        list(open_store("s3://garden/mistyped").find())
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("HOME", "/nonexistent")
    s3[1].clear_instance_cache()  # which would give the same client again
    with pytest.raises(OSError, match="NoCredentialsError"):
        list(open_store("s3://garden").find())
    s3[1].clear_instance_cache()


@pytest.mark.slow
def test_a_run_in_a_bucket_continues_after_a_kill(s3, bundle_folder):
    variables, files = s3
    files.pipe({f"garden/photos/{index % 3}/{index:03d}.jpg": jpeg(GREEN) for index in range(NUM_PHOTOGRAPHS - 1)})
    files.pipe_file("garden/photos/damaged.jpg", jpeg(RED)[:200])
    run = ("s3://garden/photos", "s3://garden/names", bundle_folder)
    process = start(*run, part_rows=3, environment=ENVIRONMENT | variables)
    wait_until(lambda: files.exists("garden/names/parts"), process)
    process.kill()
    process.wait()
    before = parts(files, "garden/names")
    assert before
    assert identify(*run, part_rows=3) == Outcome.SOME_FAILED
    assert parts(files, "garden/names").items() >= before.items(), "a part was written twice"
    rows = pq.read_table(io.BytesIO(files.cat_file("garden/names/results.parquet"))).to_pylist()
    assert len({row["group"] for row in rows}) == len(rows) == NUM_PHOTOGRAPHS
    assert [row["path"] for row in rows if row["status"] == "failed"] == ["damaged.jpg"]
