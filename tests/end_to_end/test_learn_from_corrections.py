"""The way from corrections to the next bundle, by the commands of the page as they stand there."""

import re
import shlex
import signal

import httpx2
import numpy as np
import pytest

from models.bundle import load_bundle
from tests.docs.pages import DOCS, ROOT, shell_blocks, text_of
from tests.end_to_end.photographs import WEIGHTS, answers, by_name, link, listed
from tests.end_to_end.test_readme import TINY, run
from tests.make import PHOTOS
from tests.serving.program import service
from training.drawn import Drawn, write_class_folders

FLOWERS = PHOTOS / "flowers17"
CONFUSED, NUM_KNOWN, NUM_CORRECTED = "Galanthus nivalis", 3, 60
OTHERS = 20  # training photographs of each other flower, so that this takes minutes
SMALL = (
    f"--architecture tf_efficientnetv2_b0 --weights {WEIGHTS} --device cpu --amp off --workers 1 --epochs 4 "
    "--batch-size 16 --backbone-lr 3e-4 --head-lr 1e-3 --warmup-epochs 0.5 --ema-decay 0 --picture-px 96 "
    "--progressive --serve-px 96 --cutmix 0 --erase 0"
)


def correct(client, chosen):
    """Sends photographs and their names as people do; returns the ids of the corrections."""
    for path, name in chosen:
        files = {"image": path.read_bytes()}
        asked = client.post("/identify", files=files).json()
        said = {"taxon": name, "certain": "true"}
        answer = client.post(f"/identify/{asked['request_id']}/correction", files=files, params=said)
        assert answer.status_code == httpx2.codes.OK, answer.text
        yield answer.json()["correction_id"]


def follow_the_page(folder, training, chosen):
    """Trains on `my_plants`, corrects the answers about photographs, and trains on these, by the commands of pages."""
    first = next(block for block in shell_blocks(ROOT / "README.md") if "prepare.py folder" in block[0])
    (promote, serve), look, (*learn, reload) = shell_blocks(DOCS / "corrections.md")
    (collection,) = re.findall(r"```toml\n(.*?)```", text_of(DOCS / "corrections.md"), re.DOTALL)
    (folder / "garden.toml").write_text(collection)
    for command in (*first[:-1], promote):
        run(command, folder, training)
    with service(None, *shlex.split(serve)[3:], cwd=folder) as running, running.client() as client:
        ids = " ".join(correct(client, chosen))
        for command in look:
            run(command.replace("ID ID", ids), folder)
        for command in learn:  # there are few test plants
            run(f"{command} --accept-uncertain few" if "promote" in command else command, folder)
        assert reload == "kill -HUP PID"
        running.process.send_signal(signal.SIGHUP)
        running.event("reloaded")
        model = client.get("/model").json()
    assert (model["name"], model["version"]) == ("mine", "1.1.0")


@pytest.mark.slow
def test_the_commands_of_the_page_lead_to_a_service_that_has_learned(tmp_path):
    write_class_folders(Drawn(out=tmp_path / "my_plants", species=3, pictures=14, size_px=48))
    chosen = []
    for plant in (tmp_path / "my_plants").iterdir():
        for path in sorted(plant.iterdir())[:2]:  # the service gets pictures that are not in the folder
            moved = path.rename(tmp_path / f"{len(chosen)}.jpg")
            chosen.append((moved, plant.name.partition("(")[2].rstrip(")")))
    follow_the_page(tmp_path, TINY, chosen)


@pytest.mark.photos
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_sixty_corrections_of_a_confused_flower_raise_its_recall_and_cost_the_others_nothing(tmp_path):
    rows = listed(FLOWERS)
    sets = {split: by_name(row for row in rows if row["split"] == split) for split in ("train", "test")}
    confused = sets["train"][CONFUSED]
    for name, paths in sets["train"].items():
        del paths[NUM_KNOWN + NUM_CORRECTED if name == CONFUSED else OTHERS :]
    corrected, confused[:] = confused[NUM_KNOWN:], confused[:NUM_KNOWN]
    for split, plants in sets.items():
        link(plants, tmp_path / "my_plants" / split)
    follow_the_page(tmp_path, SMALL, [(path, CONFUSED) for path in corrected])
    paths, names = zip(*((path, name) for name, paths in sets["test"].items() for path in paths), strict=True)

    def right(bundle):
        found = answers(load_bundle(tmp_path / "bundles" / bundle), paths)
        return np.array([answer.taxa[0].taxon.scientific_name for answer in found]) == names

    before, after = right("mine"), right("new")
    is_confused = np.array(names) == CONFUSED
    print(
        f"{CONFUSED}: {before[is_confused].mean():.3f} -> {after[is_confused].mean():.3f} of {is_confused.sum()}; "
        f"others: {before[~is_confused].mean():.3f} -> {after[~is_confused].mean():.3f} of {(~is_confused).sum()}"
    )
    assert after[is_confused].mean() >= before[is_confused].mean() + 0.2
    assert after[~is_confused].mean() >= before[~is_confused].mean() - 0.02
