"""Photographs of plants that tests train and ask about."""

import csv
from collections import defaultdict

from models.answer import Question, answer_plant
from models.preprocess import picture_to_input
from tests.make import PHOTOS

WEIGHTS = PHOTOS / "weights" / "tf_efficientnetv2_b0.safetensors"


def listed(folder):
    """The rows of the folder's list, each with the path of its photograph."""
    with (folder / "labels.csv").open(newline="") as stream:
        return [row | {"path": folder / row["path"]} for row in csv.DictReader(stream)]


def by_name(rows):
    """Scientific name -> paths, in the order of the rows."""
    paths = defaultdict(list)
    for row in rows:
        paths[row["scientific_name"]].append(row["path"])
    return paths


def link(photographs, folder):
    """Makes a folder for each name with links to its photographs."""
    for name, paths in photographs.items():
        (folder / name).mkdir(parents=True)
        for path in paths:
            (folder / name / path.name).symlink_to(path)


def answers(bundle, paths):
    """The answer about each photograph by itself."""
    session, model = bundle.open_session("fp32"), bundle.answer_model("fp32")
    for path in paths:
        pixels, _ = picture_to_input(path.read_bytes(), bundle.record.input)
        yield answer_plant(*session.run(pixels[None]), model, Question())
