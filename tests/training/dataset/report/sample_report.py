"""A small report: two sources, three classes, five pictures, and one entry for every reason to leave something out."""

from datetime import date
from pathlib import Path

from training.dataset.report.reasons import MEANINGS
from training.dataset.report.schema import NameFinding, NameFindings
from training.dataset.report.summary import summarize

from models.taxonomy import Output, Taxon, Taxonomy
from training.dataset.audit.licenses import LicenseSummary
from training.dataset.collection import Collection, SourceEntry
from training.dataset.sources.record import ImageInfo, LabeledPicture, LeftOut, PictureRecord, SourceClass

ROSE, IRIS, CROCUS = "wild:rosa-alba", "wild:iris-lutea", "house:crocus"
NAMES = {ROSE: "Rosa × alba", IRIS: "Iris lutea", CROCUS: "Crocus"}
LEFT_OUT = [
    LeftOut(picture=f"wild:<b>{code}</b>/x & 'y'.jpg", code=code, reason=f"because of <i>{code}</i>")
    for code in MEANINGS
]


def picture(path="a.jpg", label=ROSE, side_px=500, num_bytes=1000, source=None, **record):
    plant = SourceClass(class_id=label, name=NAMES.get(label, label))
    return LabeledPicture(
        source=source or label.partition(":")[0],
        record=PictureRecord(path=path, plant=plant, **record),
        label=label,
        info=ImageInfo(sha256="0" * 64, num_bytes=num_bytes, width=2 * side_px, height=side_px, perceptual_hash=0),
    )


PICTURES = [
    picture("rose/1.jpg", taken_on=date(2020, 5, 1), coordinates=(50.0, 8.0)),
    picture("rose/2.jpg", taken_on=date(2018, 7, 9)),
    picture("rose/3.jpg", side_px=300),
    picture("iris/1.jpg", IRIS, side_px=400),
    picture("crocus/1.jpg", CROCUS, side_px=2000, num_bytes=2_000_000),
]
SPLITS = ["train", "train", "test", "train", "validation"]


def collection(**rules):
    sources = {
        "wild": SourceEntry(layout="inaturalist", root=Path("wild"), note="May not be <sold>."),
        "house": SourceEntry(layout="image_folder", root=Path("house")),
    }
    return Collection(**{"name": "Small & green", "sources": sources, "few_pictures": 2} | rules)


def taxonomy(names=None):
    names = NAMES if names is None else names
    taxa = {key.partition(":")[2]: name for key, name in names.items()}
    return Taxonomy(
        taxonomy_version="test",
        taxa=tuple(
            Taxon(taxon_id=id_, rank="species", scientific_name=name, genus=name.split()[0])
            for id_, name in taxa.items()
        ),
        outputs=tuple(
            Output(key=key, source=key.partition(":")[0], taxon_id=key.partition(":")[2]) for key in sorted(names)
        ),
    )


def make_report(pictures=PICTURES, splits=SPLITS, left_out=LEFT_OUT, rules=None, **findings):
    names = NameFindings(
        merged=(NameFinding(name="Rosa alba", members=("wild: Rosa alba L.", "house: <Rose>"), explanation="synonym"),),
        genus_level=(NameFinding(name="Crocus", members=("house: Crocus spp.",)),),
        similar=(NameFinding(name="Iris lutea", members=("wild: Iris luteus",)),),
    )
    licenses = {
        "wild": LicenseSummary(
            commercial_use="not_allowed", sentence="May not be used commercially.", licenses={"CC BY-NC": 3, "": 1}
        )
    }
    given = {"names": names, "licenses": licenses} | findings
    return summarize(rules or collection(), pictures, splits, left_out, taxonomy(), **given)
