"""Program: records what a tree of this project answers, so that two trees can be compared with `diff -r`.

python tests/golden/record.py --tree OLD --out before
python tests/golden/record.py --tree . --out after
diff -r before after

It runs the programs of the tree on this machine: fixed seeds on drawn plants, an export, its evaluation and comparison;
each request of requests.json; a folder with the flags of the folder tool. Times and random ids are masked. All of it
needs the photographs that the tests use (BOTANIFY_PHOTOS), and takes two minutes.
"""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import httpx2
import numpy as np
import tyro
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.make import PHOTOS
from tests.waiting import wait_until

REQUESTS = Path(__file__).with_name("requests.json")
DEMONSTRATION = Path("models/releases/garden_and_wild_plants")
# Three fits: of mixed pictures, by frequency with pictures of other things, and in reduced precision.
FITS = {
    "mixed": "--label-smoothing 0.1",
    "by_frequency": "--sampling square_root --negatives others --unknown strangers/fit.csv",
    "bf16": "--amp bf16 --accumulate 2",
}
FOLDER_RUNS = {
    "plain": "",
    "groups": "--group-by folder --k 2 --truth folder",
    "taxa": "--taxa list:garden --taxa-lists lists --min-score 0.9",
    "parts": "--part 1/2 --place exif --coverage 0.9",
}
_MASKS = (
    (r'\b([0-9a-f]{40}|[0-9a-f]{32}|[0-9a-f]{12})\b|(?<=run_id": ")\w+|(?<=CARD.md": ")\w+|(?<=/tmp/)tmp\w+', "ID"),
    (r"\b20\d\d-\d\d-\d\d[T ][0-9:.]+(Z|\+00:00)?", "TIME"),
    (r'("[a-z_]*(seconds|_ms|_s|per_s|per_day|wall|elapsed)"): [0-9.e-]+', r"\1: 0"),
)


Part = Literal["training", "service", "folders"]


def main(tree: Path, out: Path, parts: tuple[Part, ...] = get_args(Part)) -> None:
    """Records a tree.

    Args:
        tree: Checkout whose programs are run, with the packages of this environment.
        out: Folder of the records; must not exist yet.
        parts: What is recorded.
    """
    out.mkdir(parents=True)
    with TemporaryDirectory() as name:
        scratch = Path(name)
        _photographs(scratch)
        run = _Runner(tree.resolve(), scratch)
        for part, record in {"training": _train_and_export, "service": _ask, "folders": _identify_folders}.items():
            if part in parts:
                record(run, scratch, out)


class _Runner:
    """Runs the programs of a tree in the scratch folder."""

    def __init__(self, tree: Path, scratch: Path) -> None:
        self.tree, self.scratch = tree, scratch
        self.environment = os.environ | {
            "PYTHONPATH": str(tree),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "120",
            "BOTANIFY_BUNDLE": str(tree / DEMONSTRATION),
        }

    def __call__(self, *words: object) -> str:
        """Returns what a program printed, with its exit code."""
        command = [sys.executable, *map(str, words)]
        ended = subprocess.run(
            command, check=False, cwd=self.scratch, env=self.environment, capture_output=True, text=True
        )
        print(f"{ended.returncode}  {' '.join(command[1:])[:150]}", flush=True)
        return f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr if ended.returncode else ''}"

    def program(self, name: str, *words: object) -> str:
        return self(self.tree / "training" / f"{name}.py", *words)


def _photographs(scratch: Path) -> None:
    """Copies the photographs that requests name, makes the damaged ones, and folders of a few."""
    flowers = PHOTOS / "flowers17/images"
    strangers, things = _strangers(), PHOTOS / "other_things/images"
    pictures = scratch / "pictures"
    pictures.mkdir()
    for name, source in {
        "flower.jpg": min((flowers / "sunflower").iterdir()),
        "leaf.jpg": flowers / "daffodil/image_0003.jpg",
        "fish.jpg": things / "n01443537_goldfish.jpg",
        "unknown.jpg": PHOTOS / "unknown_plants" / strangers[0]["path"],
        "phone.heic": PHOTOS / "photos/phone_12mp.heic",
    }.items():
        shutil.copy(source, pictures / name)
    data = (pictures / "flower.jpg").read_bytes()
    (pictures / "text.txt").write_text("no picture")
    (pictures / "broken.jpg").write_bytes(data[: len(data) // 3])
    (pictures / "cut.jpg").write_bytes(data[:-8])
    for folder in ("sunflower", "daffodil", "buttercup"):
        for path in sorted((flowers / folder).iterdir())[:4]:
            (scratch / "album" / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, scratch / "album" / folder / path.name)
    shutil.copy(pictures / "broken.jpg", scratch / "album/broken.jpg")
    (scratch / "lists").mkdir()
    (scratch / "lists/garden.txt").write_text("Helianthus annuus L.\nNarcissus\nRosa # all\n")
    for name, paths in {
        "others": sorted(things.iterdir())[:24],
        "strangers": [PHOTOS / "unknown_plants" / row["path"] for row in strangers],
    }.items():
        (scratch / name).mkdir()
        for path in paths:
            Image.open(path).convert("RGB").resize((96, 96)).save(scratch / name / f"{path.stem}.png")
    for name, rows in {"fit": strangers[:12], "export": strangers[12:]}.items():
        lines = [f"{Path(row['path']).stem}.png,{row['scientific_name']}\n" for row in rows]
        (scratch / f"strangers/{name}.csv").write_text("path,scientific_name\n" + "".join(lines))


def _strangers() -> list[dict[str, str]]:
    """Plants of twelve genera that no network here knows, four of each."""
    of_genus: dict[str, list[dict[str, str]]] = {}
    with (PHOTOS / "unknown_plants/labels.csv").open() as file:
        for row in csv.DictReader(file):
            of_genus.setdefault(row["scientific_name"].split()[0], []).append(row)
    return [row for genus in sorted(of_genus) for row in of_genus[genus][:4]]


def _train_and_export(run: _Runner, scratch: Path, out: Path) -> None:
    for name, flags in FITS.items():
        run.program(
            "train",
            "debug",
            "--run",
            f"runs/{name}",
            "--data",
            "drawn",
            "--drawn-species",
            "12",
            "--epochs",
            "4",
            *flags.split(),
        )
        rows = [json.loads(line) for line in (scratch / f"runs/{name}/log.jsonl").read_text().splitlines()]
        kept = [{key: row[key] for key in sorted(row) if re.search("loss|top|^step|epoch|lr", key)} for row in rows]
        _write(out / f"losses/{name}.json", kept)
    heads = ("--negatives", "others", "--unknown", "strangers/export.csv")
    for name in ("mixed", "by_frequency"):
        checkpoint = ("--checkpoint", f"runs/{name}/best.pt", "--data", "drawn")
        printed = run.program("export", *checkpoint, "--out", f"bundles/{name}", "--name", "drawn", *heads)
        _write(out / f"export/{name}.txt", printed)
        for path in sorted((scratch / f"bundles/{name}").rglob("*")):
            if path.suffix in {".json", ".jsonl", ".md", ".csv", ".npz"}:
                _write(out / f"export/{name}/{path.name}", _content(path))
        words = ("--data", "drawn", "--bundle", f"bundles/{name}", *heads, "--out", f"evaluation/{name}")
        _write(out / f"evaluation/{name}.txt", run.program("evaluate", *words))
        for path in sorted((scratch / f"evaluation/{name}").glob("*.[jc]s*")):
            _write(out / f"evaluation/{name}/{path.name}", path.read_text())
        _write(
            out / f"release/{name}.txt",
            run.program("release", "promote", f"bundles/{name}", "registry", "--data", "drawn"),
        )
    _write(out / "release/list.txt", run.program("release", "list", "registry"))
    _write(out / "release/rollback.txt", run.program("release", "rollback", "registry"))


def _ask(run: _Runner, scratch: Path, out: Path) -> None:
    flags = ["--port", "8931", "--plantnet-api", "--corrections", "corrections", "--taxa-lists", "lists"]
    command = [sys.executable, "-m", "serving", *flags]
    with (scratch / "service.log").open("wb") as log:
        service = subprocess.Popen(command, cwd=scratch, env=run.environment, stderr=log)
    last_id = ""
    try:
        with httpx2.Client(base_url="http://127.0.0.1:8931", timeout=60) as client:
            if not wait_until(lambda: _is_ready(client), service):
                raise SystemExit("the service did not start")
            for number, (method, path, *more) in enumerate(json.loads(REQUESTS.read_text())):
                response = _send(client, scratch, method, path.replace("ID", last_id), **(more[0] if more else {}))
                if path == "/identify" and response.status_code == 200:
                    last_id = response.json()["request_id"]
                _write(out / f"requests/{number:02}.txt", f"{method} {path}\n{json.dumps(more)}\n{_shown(response)}")
            _write(out / "metrics.txt", _without_times(client.get("/metrics").text))
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(30)
    _write(out / "corrections.txt", run("-m", "serving.corrections", "list", "corrections"))
    _write(out / "report.txt", run("-m", "serving.corrections", "report", "corrections"))


def _is_ready(client: httpx2.Client) -> bool:
    with suppress(httpx2.TransportError):
        return client.get("/health/ready").status_code == 200
    return False


def _send(client: httpx2.Client, scratch: Path, method: str, path: str, **given: Any) -> httpx2.Response:
    """Sends a row of requests.json: `images` and `fields` make a form, `body` is the file that is the body."""
    pictures = scratch / "pictures"
    sent: dict[str, Any] = {"headers": given.get("headers")}
    if "body" in given:
        sent["content"] = (pictures / given["body"]).read_bytes()
    elif "images" in given or "fields" in given:
        field = "images" if path.startswith("/v2") else "image"
        files = [(field, (name, (pictures / name).read_bytes())) for name in given.get("images", ())]
        fields = [(name, (None, value)) for name, value in given.get("fields", {}).items()]
        sent["files"] = files + fields
    return client.request(method, path, **sent)


def _shown(response: httpx2.Response) -> str:
    kept = {
        name: value
        for name, value in sorted(response.headers.items())
        if name not in {"date", "server-timing", "etag", "content-length"}
    }
    body = (
        response.text
        if response.headers.get("content-type", "").startswith(("text", "application"))
        else repr(response.content)
    )
    with_json = json.dumps(response.json(), indent=1) if "json" in response.headers.get("content-type", "") else body
    return f"{response.status_code}\n{json.dumps(kept, indent=1)}\n{with_json}"


def _identify_folders(run: _Runner, scratch: Path, out: Path) -> None:
    for name, flags in FOLDER_RUNS.items():
        printed = run("-m", "serving.identify_folder", "album", "--out", f"answers/{name}", *flags.split())
        _write(out / f"folder/{name}.txt", printed)
        for path in sorted((scratch / f"answers/{name}").rglob("*.[cj]s*")):
            _write(out / f"folder/{name}/{path.name}", path.read_text())


def _content(path: Path) -> str:
    """The text of a file; of an archive of arrays, each array with every digit."""
    if path.suffix != ".npz":
        return path.read_text()
    with np.load(path, allow_pickle=False) as arrays:
        return "".join(f"{key} {arrays[key].dtype} {arrays[key].shape}\n{arrays[key].tolist()}\n" for key in arrays)


def _without_times(metrics: str) -> str:
    return "\n".join(
        line for line in metrics.splitlines() if re.search("^botanify.*total(?!.*(health|not_ready))", line)
    )


def _write(path: Path, content: object) -> None:
    text = content if isinstance(content, str) else json.dumps(content, indent=1)
    for pattern, mask in _MASKS:
        text = re.sub(pattern, mask, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    tyro.cli(main)
