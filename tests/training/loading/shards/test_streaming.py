"""Archives are read where they lie: the same data as from their unpacked folders, and no archive is trusted."""

import gzip
import io
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from models.errors import DataError
from tests.models.pictures import encode
from tests.training.loading.shards.prepared import require_hashes
from tests.training.published_layouts import archive, write_archives, write_published_layouts
from tests.training.small import ROOT
from training.dataset.archive import members
from training.dataset.manifest import Manifest
from training.dataset.others import NEGATIVES_LIST
from training.loading.negatives import list_negatives
from training.loading.shards import PackOptions, Stream, stream
from training.loading.storage import PictureStore
from training.prepare import Sources, prepare

PLACES = ("sha256", "shard", "offset", "length", "width", "height")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    root = tmp_path_factory.mktemp("unpacked")
    write_published_layouts(root)
    prepare(Sources(collection=root / "collection.toml", root=root, out=root / "data", workers=1))
    return root


@pytest.fixture(scope="module")
def archived(unpacked, tmp_path_factory):
    return write_archives(unpacked, tmp_path_factory.mktemp("archived"))


@pytest.fixture(scope="module")
def streamed(archived):
    prepare(command(archived, archived / "data"))
    return archived


def command(root, out):
    return Sources(
        collection=root / "collection.toml", root=root, out=out, shards=out.with_name(f"{out.name}-packed"), workers=1
    )


def rows(folder, leave_out=()):
    table = Manifest(folder).table
    return sorted(table.drop(list(leave_out)).to_pylist(), key=lambda row: row["picture_id"])


def test_an_archive_gives_the_manifest_of_its_unpacked_folder(unpacked, streamed):
    assert rows(streamed / "data") == rows(unpacked / "data")
    assert (streamed / "data" / "taxa.json").read_bytes() == (unpacked / "data" / "taxa.json").read_bytes()


def test_the_pictures_are_in_the_shards(unpacked, streamed):
    folder = streamed / "data-packed"
    assert rows(folder, PLACES) == rows(unpacked / "data", PLACES)
    packed = Manifest(folder)
    require_hashes(packed)
    shards = packed.table["shard"].to_pylist()
    assert shards == sorted(shards)  # neighbors in the manifest are neighbors on the disk
    originals = {row["picture_id"]: row["sha256"] for row in rows(unpacked / "data")}
    for row in packed.rows_of("test").tolist():  # as the service would get them
        assert packed.table["sha256"][row].as_py() == originals[packed.table["picture_id"][row].as_py()]
    assert PictureStore(packed).read(0)


def test_unknown_plants_and_things_come_from_the_archive_too(unpacked, archived, tmp_path):
    lists = []
    for root in (unpacked, archived):
        text = (
            (root / "collection.toml").read_text().replace("expect_outputs = 14", "unknown_genera = 0.3\nnegatives = 3")
        )
        (root / "others.toml").write_text(text)
        out = tmp_path / root.name
        prepare(
            Sources(collection=root / "others.toml", root=root, out=out, shards=tmp_path / f"{out}-packed", workers=1)
        )
        genera = {taxon.genus for taxon in Manifest(out).taxonomy.taxa}
        found = {}
        for path in sorted(out.glob("*.csv")):
            splits = ("fit", "test") if path.name == NEGATIVES_LIST else ()
            listed = list_negatives((path,), splits)
            assert listed.num_broken == 0
            assert splits or not genera & {name.split()[0] for name in listed.scientific_names}
            found[path.name] = listed.scientific_names, [file.read_bytes() for file in listed.paths]
        lists.append(found)
    assert lists[0] == lists[1]
    assert {"negatives.csv", "unknown_train.csv"} <= lists[0].keys()
    assert len(lists[0]["negatives.csv"][0]) == 5  # 3 to fit on, and one of each kind to judge with


def test_a_folder_for_the_shards_is_needed(archived, tmp_path):
    missing = Sources(collection=archived / "collection.toml", root=archived, out=tmp_path, workers=1)
    with pytest.raises(DataError, match="--shards"):
        prepare(missing)


KILLED = """
import os, signal, sys
from pathlib import Path
from training.dataset.others import NEGATIVES_LIST
from training.loading.negatives import list_negatives
from training.loading.shards import PackOptions, Stream, stream, streaming
write = streaming._write_shard
num_left = int(sys.argv[3])

def written(*arguments):
    global num_left
    if num_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    num_left -= 1
    return write(*arguments)

streaming._write_shard = written
kept = dict.fromkeys(Path(sys.argv[1]).with_suffix(".txt").read_text().split("\\n"), False)
pass_ = Stream("s", Path(), [Path(sys.argv[1])], kept)
if __name__ == "__main__":
    stream(pass_, Path(sys.argv[2]), PackOptions(shard_mb=0.01), 1)
"""


@pytest.mark.parametrize("kind", ["tar.gz", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("tar", "zip"))])
def test_a_killed_pass_continues_after_its_last_shard(unpacked, tmp_path, kind):
    shutil.copytree(unpacked / "inat2021" / "train", tmp_path / "train")
    paths = [path.relative_to(tmp_path).as_posix() for path in sorted((tmp_path / "train").rglob("*.jpg"))]
    archive(tmp_path / "train", kind)
    packed = tmp_path / f"train.{kind}"
    (packed.with_suffix(".txt")).write_text("\n".join(paths))
    program = [sys.executable, "-c", KILLED, str(packed), str(tmp_path / "killed"), "2"]
    assert subprocess.run(program, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    pass_ = Stream("s", Path(), [packed], dict.fromkeys(paths, False))
    options = PackOptions(shard_mb=0.01)
    whole, continued = (stream(pass_, tmp_path / name, options, 1) for name in ("whole", "killed"))
    assert len(whole["shard"].unique()) > 3
    assert continued == whole
    for tar in (tmp_path / "whole").glob("*.tar"):
        assert (tmp_path / "killed" / tar.name).read_bytes() == tar.read_bytes()


def tar_of(path, *infos):
    with tarfile.open(path, "w") as packed:
        for info, content in infos:
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))


def info(name, **values):
    made = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(made, key, value)
    return made


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (info("../a.jpg"), "outside"),
        (info("/etc/a.jpg"), "outside"),
        (info("a.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "link"),
        (info("a.jpg", type=tarfile.LNKTYPE, linkname="b.jpg"), "link"),
        (info("a.jpg", type=tarfile.CHRTYPE), "device"),
    ],
)
def test_a_member_that_cannot_be_trusted_is_refused_by_name(tmp_path, member, why):
    tar_of(tmp_path / "a.tar", (member, b""))
    with pytest.raises(DataError, match=f"{member.name}.*{why}"):
        list(members(tmp_path / "a.tar"))


def header(kind, size, name="a.jpg"):
    return info(name, type=kind, size=size).tobuf(tarfile.GNU_FORMAT)


A_MEMBER = [info("a.jpg", size=1).tobuf(), b"1" + bytes(511)]


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"X"])
def test_a_header_that_is_too_long_is_refused_by_name(tmp_path, kind):
    with gzip.open(tmp_path / "a.tar.gz", "wb") as packed:
        packed.writelines([header(kind, 2 << 20, "././@Long"), bytes(2 << 20), *A_MEMBER, bytes(1024)])
    with pytest.raises(DataError, match=r"the header \././@Long: 2 MB, more than 1"):
        list(members(tmp_path / "a.tar.gz"))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"1" * 900_000, "damaged"),  # hours in tarfile, where its time is quadratic
        (b"-9 path=b\n", "longer than its header"),
        (b"99 path=b\n", "longer than its header"),
        (b"11 size=-1\n", "a negative length"),
        (b"22 GNU.sparse.major=1\n", "a sparse file"),
    ],
)
def test_records_of_a_header_that_nobody_writes_are_refused(tmp_path, body, problem):
    padded = body + bytes(-len(body) % 512)
    (tmp_path / "a.tar").write_bytes(b"".join([header(b"x", len(body)), padded, *A_MEMBER, bytes(1024)]))
    with pytest.raises(DataError, match=problem):
        list(members(tmp_path / "a.tar"))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_other_letters_come_as_they_are(tmp_path, form):
    names = [f"{'Rosa canina/' * 12}{'é' * 60}.jpg", "Ärmelblume/1.jpg", "a.jpg"]
    with tarfile.open(tmp_path / "a.tar", "w", format=form, pax_headers={"comment": "of all"}) as packed:
        packed.addfile(info("folder", type=tarfile.DIRTYPE))
        for name in names:
            packed.addfile(info(name, size=3, mtime=0.5), io.BytesIO(b"abc"))
    assert [(member.name, member.read()) for member in members(tmp_path / "a.tar")] == [
        (name, b"abc") for name in names
    ]


def test_a_bomb_is_refused_before_it_is_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.jpg", bytes(101_000_000))
    with pytest.raises(DataError, match=r"a\.jpg: 101 MB"):
        list(members(tmp_path / "a.zip"))


def test_a_link_in_a_zip_is_refused(tmp_path):
    link = zipfile.ZipInfo("a.jpg")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="a link"):
        list(members(tmp_path / "a.zip"))


def test_two_members_of_one_name_are_refused(tmp_path):
    tar_of(tmp_path / "a.tar", (info("x/a.jpg"), b"1"), (info("a.jpg"), b"2"))
    with pytest.raises(DataError, match="one name"):
        stream(Stream("s", tmp_path, [tmp_path / "a.tar"], {"a.jpg": True}), tmp_path / "out", PackOptions(), 1)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_a_damaged_archive_is_one_clear_error(tmp_path, kind):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "a.bin").write_bytes(bytes(range(256)) * 4000)
    archive(tmp_path / "a", kind)
    whole = Path(f"{tmp_path}/a.{kind}")
    content = whole.read_bytes()
    damaged = [content[: len(content) // 2], b"<html>"]
    if kind == "tar.gz":
        damaged.append(content[:-6] + bytes(6))  # gzip's sum, which tarfile alone does not check
    for each in damaged:
        whole.write_bytes(each)
        with pytest.raises(DataError, match="damaged"):
            [member.read() for member in members(whole)]


@pytest.mark.parametrize("length", [1024, 1024 + 100, None])
def test_a_tar_that_ends_between_two_members_or_has_a_damaged_header_is_damaged(tmp_path, length):
    tar_of(tmp_path / "a.tar", (info("a.jpg"), b"1"), (info("b.jpg"), b"2"))
    content = bytearray((tmp_path / "a.tar").read_bytes())
    content[1024] ^= 1  # of the name of the second member
    (tmp_path / "a.tar").write_bytes(content[:length])
    with pytest.raises(DataError, match="damaged"):
        list(members(tmp_path / "a.tar"))


def test_a_sum_that_is_wrong_behind_a_long_end_is_damaged(tmp_path):
    with gzip.open(tmp_path / "a.tar.gz", "wb") as packed:
        packed.writelines([*A_MEMBER, bytes(3 << 20)])
    content = bytearray((tmp_path / "a.tar.gz").read_bytes())
    content[-8] ^= 1
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        list(members(tmp_path / "a.tar.gz"))


def test_a_cut_shard_is_written_anew_and_one_of_other_options_or_of_a_changed_archive_is_refused(tmp_path):
    tar_of(tmp_path / "a.tar", (info("a.jpg"), encode(Image.new("RGB", (60, 90)), "JPEG")))
    pass_ = Stream("s", tmp_path, [tmp_path / "a.tar"], {"a.jpg": False})
    first = stream(pass_, tmp_path / "out", PackOptions(short_side_px=20), 1)
    assert (first["width"].to_pylist(), first["height"].to_pylist()) == ([20], [30])
    shard = tmp_path / "out" / first["shard"][0].as_py()
    whole = shard.read_bytes()
    shard.write_bytes(whole[:600])
    assert stream(pass_, tmp_path / "out", PackOptions(short_side_px=20), 1) == first
    assert shard.read_bytes() == whole
    with pytest.raises(DataError, match=r"pictures or options"):
        stream(pass_, tmp_path / "out", PackOptions(short_side_px=30), 1)
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes())
    with pytest.raises(DataError, match="an archive that was written again"):
        stream(pass_, tmp_path / "out", PackOptions(short_side_px=20), 1)
