"""Pictures that get no class: with a wrong label, known to no genus, of genera that are kept out, and without a plant.

A network that has only seen its plants gives their names to everything. iNaturalist 2021 shows more than plants, and
the plants that are kept out have the cameras and the style of the others.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from models.errors import DataError
from models.text_table import write_csv
from training.dataset.classes import Classes, Corrections, parse_class_names
from training.dataset.sources.json_layouts import choose_alike, read_negatives
from training.dataset.sources.record import LeftOut, Other, SourceClass, SourceContents

NEGATIVES_LIST: Final = "negatives.csv"
UNKNOWN_LISTS: Final = ("unknown_train.csv", "unknown_export.csv", "unknown_test.csv")
"""Of the genera that are kept out: for train.py, for export.py, and for evaluate.py."""
_LIST_OF_TEN: Final = "0000011122"  # the number of the list, of ten genera


Lists = Mapping[str, Sequence[Other]]
"""Name of a list -> its pictures."""


def leave_out(contents: Mapping[str, SourceContents], wrong: Mapping[str, str]) -> dict[str, SourceContents]:
    """Leaves out the pictures whose labels a collection calls wrong, by picture id.

    Raises:
        DataError: No source has one of them.
    """
    missing = dict(wrong)
    kept = {}
    for name, source in contents.items():
        records = []
        left_out = [*source.left_out]
        for record in source.records:
            reason = missing.pop(picture := f"{name}:{record.path}", None)
            if reason is None:
                records.append(record)
            else:
                left_out.append(LeftOut(picture=picture, code="wrong_label", reason=reason))
        kept[name] = replace(source, records=records, left_out=left_out)
    if missing:
        remedy = "correct leave_out in the collection"
        raise DataError("no data set has a picture that is to be left out", value=min(missing), remedy=remedy)
    return kept


def leave_out_above_genus(
    contents: Mapping[str, SourceContents], corrections: Corrections
) -> dict[str, SourceContents]:
    """Leaves out the classes that are named by a family, a tribe or another rank above the genus.

    Raises:
        DataError: As `parse_class_names`.
    """
    named = parse_class_names(classes_of(contents), corrections, {})
    above = {(each.source, each.plant.class_id) for each in named if each.name.above_genus and not each.plant.genus}
    reason = "it is named by a rank above the genus, such as a family or tribe"
    return {
        name: _without(name, source, {key for of, key in above if of == name}, "above_genus", reason)
        for name, source in contents.items()
    }


def _without(name: str, source: SourceContents, class_ids: set[str], code: str, reason: str) -> SourceContents:
    """Leaves out classes of a source."""
    num_out = Counter(record.plant.class_id for record in source.records if record.plant.class_id in class_ids)
    left_out = [
        LeftOut(picture=f"{name}:{class_id}", code=code, reason=reason, num_pictures=count)
        for class_id, count in num_out.items()
    ]
    kept = [record for record in source.records if record.plant.class_id not in class_ids]
    return replace(source, records=kept, left_out=[*source.left_out, *left_out])


def classes_of(contents: Mapping[str, SourceContents]) -> dict[str, list[SourceClass]]:
    """Returns the classes of each source, in the order of its pictures."""
    return {
        name: list({record.plant.class_id: record.plant for record in source.records}.values())
        for name, source in contents.items()
    }


def keep_out(
    sources: Mapping[str, SourceContents], classes: Classes, share: float, seed: int
) -> tuple[dict[str, SourceContents], Classes, dict[str, list[Other]]]:
    """Keeps a share of all genera, by accepted names, out of the outputs. Classes without a genus stay.

    Returns:
        The sources and the outputs without them, and the lists of `UNKNOWN_LISTS`: a genus is in one of them.
    """
    taxa = {taxon.taxon_id: taxon for taxon in classes.taxonomy.taxa}
    genus_of = {output.key: taxa[output.taxon_id].genus for output in classes.taxonomy.outputs}
    genera = sorted({*genus_of.values()} - {""}, key=lambda genus: hashlib.sha256(f"{seed} {genus}".encode()).digest())
    drawn = genera[: round(share * len(genera))]
    list_of = {genus: UNKNOWN_LISTS[int(_LIST_OF_TEN[place % 10])] for place, genus in enumerate(drawn)}
    lists: dict[str, list[Other]] = {name: [] for name in sorted({*list_of.values()})}
    kept = {}
    for name, source in sources.items():
        out = set[str]()
        for record in source.records:
            if (genus := genus_of[classes.labels[name, record.plant.class_id]]) in list_of:
                lists[list_of[genus]].append(Other(name, record.path, record.plant.name))
                out.add(record.plant.class_id)
        reason = "its genus is kept out of the outputs, as an unknown plant"
        kept[name] = _without(name, source, out, "kept_out", reason)
    outputs = tuple(output for output in classes.taxonomy.outputs if genus_of[output.key] not in list_of)
    named = {output.taxon_id for output in outputs}
    known = tuple(taxon for taxon in classes.taxonomy.taxa if taxon.taxon_id in named)
    return kept, replace(classes, taxonomy=replace(classes.taxonomy, taxa=known, outputs=outputs)), lists


def without_a_plant(name: str, root: Path, most: int, seed: int) -> list[Other]:
    """Chooses at most so many pictures without a plant of each split of an iNaturalist folder.

    They are of all names alike: none has two before each has one.

    Raises:
        DataError: A file of the folder is missing or damaged.
    """
    return [each for pictures in read_negatives(name, root).values() for each in choose_alike(pictures, most, seed)]


def write_list(path: Path, others: Sequence[Other], roots: Mapping[str, Path]) -> None:
    """Writes a list, with paths relative to its real folder, for the flags --negatives and --unknown."""
    columns = ("path", "scientific_name", "split", "kingdom")[: 4 if any(each.split for each in others) else 2]
    # Behind a symbolic link `..` is another folder.
    relative = {source: os.path.relpath(root.resolve(), path.parent.resolve()) for source, root in roots.items()}
    rows = (
        (f"{relative[each.source]}/{each.path}", each.scientific_name, each.split, each.kingdom)[: len(columns)]
        for each in others
    )
    write_csv(path, columns, rows)
