"""Genera that are kept out of the outputs: which list each of them is in."""

from pathlib import Path

from training.dataset.classes import build_classes
from training.dataset.others import keep_out
from training.dataset.sources.record import PictureRecord, SourceClass, SourceContents

GENERA = (
    "Acer Betula Cornus Daphne Erica Fagus Galium Hedera Iris Juncus Knautia Lilium Malva Nepeta Oxalis Pinus "
    "Quercus Rosa Salix Tilia"
)


def test_of_ten_genera_that_are_kept_out_five_train_three_fit_and_two_judge():
    plants = [SourceClass(class_id=genus, name=f"{genus} alba") for genus in GENERA.split()]
    records = [PictureRecord(path=f"{plant.class_id}.jpg", plant=plant) for plant in plants]
    classes = build_classes({"s": plants}, "across_sources")
    kept, known, lists = keep_out({"s": SourceContents(Path(), records, [])}, classes, share=0.5, seed=0)
    found = {name: len(pictures) for name, pictures in lists.items()}
    assert found == {"unknown_train.csv": 5, "unknown_export.csv": 3, "unknown_test.csv": 2}
    assert len(kept["s"].records) == len(known.taxonomy.outputs) == 10
