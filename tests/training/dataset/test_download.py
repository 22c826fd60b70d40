"""The data sets of a collection, from servers that are ours."""

import hashlib
import json
import sys
from types import SimpleNamespace

import pytest

from models.errors import DataError, RecipeError
from tests.make import from_table
from tests.training.dataset.file_server import FileServer
from training.dataset import download as module
from training.dataset.collection import read_collection
from training.dataset.download import Download, download

CONTENT = {f"/inat/{name}.tar.gz": name.encode() * 999 for name in ("train_mini", "train_mini.json", "val", "val.json")}
OTHER = {"/list.txt": b"a\nb\n" * 99, "/zip": b"PK" * 999}


def md5(content):
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def published(tmp_path):
    """A collection with a source of each kind, its server, and the folder for its data sets."""
    server = FileServer(CONTENT | OTHER)
    with server.running() as url:
        archive = {"key": "plantnet_300K.zip", "size": 1998, "checksum": f"md5:{md5(OTHER['/zip'])}"}
        record = {"id": 7, "files": [archive | {"links": {"self": f"{url}/zip"}}]}
        server.files["/api/records/7"] = json.dumps(record).encode()
        text = 'name = "published"\n'
        for name, layout, files, note in (
            (
                "inat",
                "inaturalist",
                [f"{url}{path}#md5={md5(content)}" for path, content in CONTENT.items()],
                "for all",
            ),
            ("plantnet", "plantnet", [f"{url}/api/records/7"], "by image"),
            ("lists", "table", [f"{url}/list.txt"], ""),
        ):
            root = "lists/labels.csv" if layout == "table" else f"raw/{name}"
            text += f'[sources.{name}]\nlayout = "{layout}"\nroot = "{root}"\nnote = "{note}"\n'
            text += f"files = {json.dumps(files)}\n"
        (tmp_path / "own.toml").write_text(text)
        yield SimpleNamespace(server=server, url=url, toml=tmp_path / "own.toml", root=tmp_path / "data")


def run(published, **options):
    """Returns what the download tells."""
    told = []
    options = {"yes": True} | options
    download(Download(collection=published.toml, root=published.root, **options), tell=told.append)
    return "\n".join(told)


def contents(root):
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.suffix in {".gz", ".zip"}
    }


ALL = {f"raw{path}": content for path, content in CONTENT.items()} | {"raw/plantnet/plantnet_300K.zip": OTHER["/zip"]}


def test_everything_is_downloaded_once_and_checked_again(published, capsys):
    told = run(published)
    assert contents(published.root) == ALL
    assert (published.root / "lists" / "list.txt").read_bytes() == OTHER["/list.txt"]
    first_done = told.index("GB, checked")
    for words in (
        "inat: for all",
        "lists: its license is not known",
        "Free in",
        "list.txt: 0.00 GB, no published",
    ):
        assert told.index(words) < first_done
    assert "Next: python training/prepare.py sources" in capsys.readouterr().out
    assert "HEAD /zip" not in {f"{command} {path}" for command, path, *_ in published.server.asked}  # in the record
    published.server.asked.clear()
    assert run(published, yes=False).count("there already, checked") == 5
    assert [request[:2] for request in published.server.asked] == [("HEAD", "/list.txt")]  # it has no checksum


def test_a_damaged_copy_is_fetched_again_and_a_wrong_file_stops_no_other(published):
    run(published)
    damaged = published.root / "raw/inat/val.tar.gz"
    damaged.write_bytes(b"damaged")
    assert "val.tar.gz is not the published file" in run(published)
    assert damaged.read_bytes() == CONTENT["/inat/val.tar.gz"]
    for path in published.root.glob("raw/inat/*"):
        path.unlink()
    published.server.files["/inat/val.tar.gz"] = b"other"
    with pytest.raises(DataError, match=r"1 of 6 files .*expected md5:"):
        run(published)
    assert contents(published.root) == {
        path: content for path, content in ALL.items() if not path.endswith("val.tar.gz")
    }
    assert damaged.with_name("val.tar.gz.wrong").read_bytes() == b"other"


def test_a_mirror_has_the_files_of_the_folder(published):
    published.server.files = {f"/copy/{path}": content for path, content in ALL.items()} | {
        "/copy/raw/plantnet/record.json": published.server.files["/api/records/7"]
    }
    run(published, mirror=f"{published.url}/copy/", without=("lists",))
    assert contents(published.root) == ALL


@from_table
def test_nothing_is_downloaded_without_a_yes(published, monkeypatch, terminal, answer, say):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setattr("builtins.input", lambda _: answer)
    if answer == "y":
        run(published, yes=False)
    else:
        with pytest.raises(DataError, match=rf"{say}.*pass --yes"):
            run(published, yes=False)
    assert bool(contents(published.root)) == (answer == "y")


def test_a_dry_run_tells_sizes_and_terms_and_fetches_no_archive(published):
    told = run(published, dry_run=True, yes=False)
    assert "inat: for all" in told
    assert "To download: 0.00 GB. Free in" in told
    assert not contents(published.root)


def test_a_small_disk_is_said_before_the_first_byte(published, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(DataError, match=r"too small.*--without"):
        run(published)
    assert not contents(published.root)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=2e9))
    with pytest.raises(DataError, match=r"2.00 GB free; expected 0.00 GB for the download and 3 GB to pack"):
        run(published, keep_free_gb=3.0)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    (published.root / "raw/inat").mkdir()
    whole = CONTENT["/inat/train_mini.tar.gz"]
    (published.root / "raw/inat/train_mini.tar.gz.part").write_bytes(whole)
    needed = sum(map(len, [*CONTENT.values(), *OTHER.values()])) - len(whole)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    run(published)
    run(published, keep_free_gb=3.0)  # nothing is missing, and some of it may be packed already


def test_a_data_set_that_nobody_lists_is_unpacked_by_hand(published):
    house = '[sources.house]\nlayout = "image_folder"\nroot = "house"\n'
    published.toml.write_text(published.toml.read_text() + house)
    with pytest.raises(
        DataError, match=r"no files for a source \(got house: .*data/house\): unpack the data set there"
    ):
        run(published)
    assert not contents(published.root)
    (published.root / "house").mkdir()
    assert "Complete" in run(published)


@pytest.mark.parametrize(
    "files",
    [
        "2021_train",
        "ftp://h/a.zip",
        "https://h/",
        "https://h/..",
        "https://[::1/a",
        "https://h/.lock",
        f"https://h/{'a' * 300}",
    ],
)
def test_an_entry_that_names_no_file_is_one_error(published, files):
    published.toml.write_text(published.toml.read_text().replace(f"{published.url}/list.txt", files))
    with pytest.raises(DataError, match=r"cannot be used \(got .*https://HOST/FILE"):
        run(published)


def test_two_entries_with_one_place_are_refused_before_the_first_byte(published):
    first = f'"{published.url}/list.txt"'
    text = published.toml.read_text().replace(first, f'{first}, "{published.url}/mirror/list.txt"')
    published.server.files["/mirror/list.txt"] = b"c"
    published.toml.write_text(text)
    with pytest.raises(DataError, match=r"written over each other \(got 2 for .*/data/lists.*name the file once"):
        run(published)
    assert not contents(published.root)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"plantnet_", b"../", "no file of the web"),
        (b"md5:", b"sha1:", "no checksum"),
        (b"md5:", b"md5:0", "no checksum"),
    ],
)
def test_a_record_cannot_write_elsewhere_or_give_another_kind_of_checksum(published, old, new, problem):
    published.server.files["/api/records/7"] = published.server.files["/api/records/7"].replace(old, new)
    with pytest.raises(DataError, match=rf"cannot be used .*{problem}"):
        run(published)
    assert not contents(published.root)


@pytest.mark.parametrize("root", ["../up", "/absolute"])
def test_nothing_is_written_outside_of_the_root(published, root):
    published.toml.write_text(published.toml.read_text().replace("raw/inat", root))
    with pytest.raises(DataError, match=r"the files of inat would be written elsewhere .*a root below --root"):
        run(published, mirror=f"{published.url}/copy/")
    assert not contents(published.root.parent)


def test_an_absolute_root_below_the_root_has_its_mirror(published):
    published.toml.write_text(published.toml.read_text().replace("raw/inat", str(published.root / "raw/inat")))
    published.server.files = {f"/copy/{path}": content for path, content in ALL.items()}
    run(published, mirror=f"{published.url}/copy/", without=("lists", "plantnet"))
    assert contents(published.root).keys() == {path for path in ALL if "inat" in path}


def test_a_file_without_a_length_may_not_fill_the_disk(published, monkeypatch):
    published.server.length = ""
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=3e9))
    with pytest.raises(DataError, match=r"too long \(expected at most 0 MB"):
        run(published, without=("inat", "plantnet"), keep_free_gb=3.0)


def test_sources_are_left_out_by_name(published):
    assert [*read_collection(published.toml, ["lists", "inat"]).sources] == ["plantnet"]
    for names in (["iant"], ["inat", "plantnet", "lists"]):
        with pytest.raises(RecipeError, match="--without"):
            read_collection(published.toml, names)
