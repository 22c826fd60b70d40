"""Program: turns data sets into training data, and packs it.

Commands:
  python training/prepare.py folder DIR --out DATA          a folder with one folder of pictures for each class
  python training/prepare.py table LIST.csv --out DATA      a CSV list
  python training/prepare.py inaturalist-export observations.csv --out DATA   observations that you exported there
  python training/prepare.py gbif DOWNLOAD.zip --out DATA   a download of gbif.org: the flora of a region
  python training/prepare.py download data_5337 --root DIR  downloads data sets that are listed in a TOML file
  python training/prepare.py sources data_5337 --out DATA   several data sets, listed in a TOML file
  python training/prepare.py pack DATA --out PACKED         packs pictures into shards, for fast loading
  python training/prepare.py reduce LIST --out DIR          reduces the pictures of --negatives and --unknown alike
  python training/prepare.py negatives DIR --out LIST.csv   lists pictures without a plant of an iNaturalist folder
  python training/prepare.py drawn DIR                      draws class folders of invented plants, for rehearsals

All with --out DATA read the data sets' lists and folders, name the classes before the hours of decoding, decode every
picture once (a later run continues), leave out copies and leaks, draw the splits, and write manifest and report.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages, run_program, tell_next

explain_missing_packages("make train-env")

import msgspec
import pyarrow as pa
import tyro

from models.cores import cores
from models.errors import DataError
from models.taxonomy import Taxonomy
from training.dataset.archive import stem
from training.dataset.audit.examine import examine
from training.dataset.audit.near_copies import near_copy_groups
from training.dataset.classes import Classes, build_classes, names_to_look_up
from training.dataset.collection import READERS, Collection, CutShare, NearCopyBits, read_collection
from training.dataset.download import Download, download
from training.dataset.manifest import MANIFEST_FILE, Manifest, SourceNote, write_manifest
from training.dataset.name_table import with_names
from training.dataset.others import (
    NEGATIVES_LIST,
    Lists,
    classes_of,
    keep_out,
    leave_out,
    leave_out_above_genus,
    without_a_plant,
    write_list,
)
from training.dataset.report.findings import Report, build_report
from training.dataset.report.page import HTML_FILE, advice, report_files
from training.dataset.selection import manifest_columns, select_pictures
from training.dataset.sources.gbif import import_download
from training.dataset.sources.inaturalist_export import import_observations
from training.dataset.sources.record import LabeledPicture, LeftOut, SourceContents, Split
from training.dataset.splits import draw_splits, name_codes
from training.dataset.synonyms import read_synonyms
from training.drawn import Drawn, write_class_folders
from training.loading.shards import (
    Pack,
    PackOptions,
    Reduce,
    Stream,
    infos,
    pack,
    reduce_pictures,
    stream,
    write_streamed_manifest,
)
from training.toml_file import Section, check_section

CACHE_FILE: Final = "audit.sqlite"
_MOST_LISTED: Final = 20


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the commands that prepare pictures."""

    out: Path
    """Folder for manifest, names and report."""
    workers: Annotated[int, msgspec.Meta(ge=1)] = cores()
    """Processes that decode pictures."""
    shards: Path | None = None
    """Also pack the pictures into this folder, like the command `pack`."""


class OneSource(Preparation, frozen=True, kw_only=True):
    """Options of the commands for one data set."""

    source: str = ""
    """Name of the data set in output keys; default: name of the folder."""
    license: Annotated[str, tyro.conf.arg(aliases=["--licence"])] = ""
    """License of the pictures for which the data set gives none."""
    validation_share: CutShare = 0.1
    """Share of each class's training pictures that becomes validation, unless the data set has a validation split."""
    calibration_share: CutShare = 0.0
    """Share of each class's training pictures that calibrate a bundle; with 0 validation does, and names promise
    nothing."""
    test_share: CutShare = 0.1
    """Share of each class's pictures that becomes test, unless the data set has a test split."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Seed of the random choice of these pictures."""
    synonyms: Path | None = None
    """Darwin Core Taxon file (GBIF's backbone, Kew's WCVP) with accepted names, synonyms, families and identifiers."""
    names: Path | None = None
    """CSV table of common names in several languages and of identifiers: taxon, language, name, preferred, gbif_id,
    powo_id."""
    near_copy_bits: NearCopyBits = 4
    """Pictures whose 64-bit perceptual hashes differ in at most this many bits go to one split."""


class Folder(OneSource, frozen=True, kw_only=True):
    """A folder with one folder of pictures for each class, named Common (Scientific), or by one of the two names.

    The class folders may stand in train, val and test.
    """

    pictures: tyro.conf.Positional[Path]
    """The folder above the class folders."""


class Table(OneSource, frozen=True, kw_only=True):
    """A CSV list with columns path and scientific_name or common_name, and optionally split, group and more."""

    table: tyro.conf.Positional[Path]
    """The list; paths in it are relative to its folder."""
    path_column: str = ""
    """Its column of paths; default: path, or one of its usual spellings."""
    name_column: str = ""
    """Its column of names, scientific or common; default: scientific_name, or common_name where that is missing."""


class InaturalistExport(OneSource, frozen=True, kw_only=True):
    """The CSV file of iNaturalist's page "Export observations"; photographs are downloaded, one a second.

    They are kept in OUT/photographs with author, license, date and place; the same command continues.
    """

    export: tyro.conf.Positional[Path]
    """The CSV file, with the columns id, scientific_name and image_url."""
    photographs: Path | None = None
    """Folder of photographs that you have, named by the id of their observation (123.jpg), instead of a download."""


class Gbif(OneSource, frozen=True, kw_only=True):
    """A download of gbif.org in the format Darwin Core archive; its photographs are fetched, a few at once.

    They are kept in OUT/photographs with author, license, date and place. OUT/failed.csv lists those that could not be
    fetched; the same command continues, and tries them again.
    """

    download: tyro.conf.Positional[Path]
    """The .zip file, which is not unpacked, or the folder to which it was."""
    licenses: tuple[str, ...] = ()
    """Licenses to take, such as cc0 cc-by cc-by-sa, each in all its versions unless it names one; default: all."""


class Sources(Preparation, frozen=True, kw_only=True):
    """Several data sets, listed with their rules in a TOML file."""

    collection: tyro.conf.Positional[Path]
    """A TOML file, or the name of one in training/recipes."""
    root: Path = Path()
    """Folder that the data sets' roots are relative to."""
    without: tuple[str, ...] = ()
    """Sources to leave out."""


class Negatives(Section, frozen=True, kw_only=True):
    """Lists the pictures without a plant (animals, fungi) of an iNaturalist 2021 folder, for the flag --negatives."""

    pictures: tyro.conf.Positional[Path]
    """The folder with train.json or train_mini.json, and val.json."""
    out: Path
    """CSV list to write."""
    most: Annotated[int, msgspec.Meta(ge=1)] = 5000
    """Pictures of each split at most. They are of all species alike: none has two before each has one."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Seed of the random choice."""


Command = Folder | Table | InaturalistExport | Gbif | Download | Sources | Pack | Reduce | Negatives | Drawn


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Command, run, description=__doc__)


def run(command: Command) -> None:
    """Runs one command.

    Raises:
        BotanifyError: An error that the user can correct.
    """
    match command:
        case Pack():
            pack(command)
        case Reduce():
            written, broken = reduce_pictures(command)
            print(f"{written:,} pictures in {command.out}; {broken:,} do not decode and are left out")
        case Negatives():
            listed = ", ".join(f"{count:,} {split}" for split, count in write_negatives(command).items())
            print(f"Pictures without a plant: {listed}. Next: --negatives {command.out}")
        case Download():
            download(command)
        case Drawn():
            drawn = len(write_class_folders(command))
            print(f"Drawn: {drawn:,} pictures. Next: python training/prepare.py folder {command.out} --out DATA")
        case InaturalistExport() | Gbif():
            prepare(_imported(command))
        case _:
            prepare(command)


def _imported(command: InaturalistExport | Gbif) -> Table:
    """Fetches photographs, and returns the command that reads their list."""
    if isinstance(command, Gbif):
        imported = import_download(command.download, command.out, command.licenses, command.license)
    else:
        imported = import_observations(command.export, command.out, command.photographs)
    print(f"{imported.num_pictures:,} photographs, {imported.left_out.total():,} left out")
    for reason, count in imported.left_out.most_common(_MOST_LISTED):
        print(f"  {reason}{f' ({count:,} photographs)' if count > 1 else ''}")
    same = {name: getattr(command, name) for name in OneSource.__struct_fields__}
    name = "gbif" if isinstance(command, Gbif) else "inaturalist"
    return Table(table=imported.table, **same | {"source": command.source or name})


class DatasetSpec(msgspec.Struct, frozen=True):
    """The sources and classes of a training set, before its pictures are decoded."""

    collection: Collection
    roots: Mapping[str, Path]
    """Source -> the folder that its pictures' paths are relative to."""
    classes: Classes
    notes: Sequence[str] = ()
    """What the readers say about the sources."""


def prepare(command: Folder | Table | Sources) -> Report:
    """Makes one training set of the data sets that the command names.

    Raises:
        DataError: A data set cannot be used or no picture is left; an older manifest then stays in place.
    """
    if isinstance(command, Sources):
        collection = read_collection(command.collection, command.without)
        base = command.root
    else:
        collection = _collection_of_one(command)
        base = Path()
    sources = leave_out_above_genus(
        read_sources(collection, base), {name: entry.names for name, entry in collection.sources.items()}
    )
    classes = name_classes(collection, base, sources)
    sources, classes, lists = keep_out(sources, classes, collection.unknown_genera, collection.seed)
    _require_num_outputs(classes.taxonomy, collection)
    if collection.negatives:
        lists[NEGATIVES_LIST] = [
            other
            for name, entry in collection.sources.items()
            if entry.layout == "inaturalist"
            for other in without_a_plant(name, sources[name].root, collection.negatives, collection.seed)
        ]
    notes = [*(note for each in sources.values() for note in each.notes), *classes.notes]
    if collection.names is not None:
        taxonomy, note = with_names(classes.taxonomy, base / collection.names)
        classes = msgspec.structs.replace(classes, taxonomy=taxonomy)
        notes = [*notes, note]
    if any(source.archives for source in sources.values()) and command.shards is None:
        remedy = "name a folder for the packed pictures: --shards DIR"
        raise DataError("the pictures are in archives, which are packed while they are read", remedy=remedy)
    command.out.mkdir(parents=True, exist_ok=True)
    roots = {
        name: (command.shards or Path()) / "others" / name if source.archives else source.root
        for name, source in sources.items()
    }
    streamed = stream_pictures(sources, lists, roots, command)
    pictures, unusable = decode_pictures(sources, classes, streamed, command, collection.min_side_px)
    left_out = [entry for source in sources.values() for entry in source.left_out]
    spec = DatasetSpec(collection, {name: source.root for name, source in sources.items()}, classes, notes)
    report = write_dataset(spec, pictures, [*left_out, *unusable], command.out)
    for name, others in lists.items():
        write_list(command.out / name, others, roots)
    _print_report(report, command.out)
    if streamed and command.shards is not None:
        write_streamed_manifest(command.shards, Manifest(command.out), streamed)
        print(f"The pictures are in {command.shards}")
        tell_next(f"python training/train.py RECIPE --data {command.shards}")
    elif command.shards is None:
        tell_next(f"python training/train.py RECIPE --data {command.out}")
    else:
        pack(Pack(data=command.out, out=command.shards, workers=command.workers))
    return report


def _collection_of_one(command: Folder | Table) -> Collection:
    if isinstance(command, Folder):
        root = folder = command.pictures.resolve()
        entry: dict[str, Any] = {"layout": "image_folder"}
    else:
        root = command.table.resolve()
        folder = command.table.resolve().parent
        columns = {"path": command.path_column, "scientific_name": command.name_column}
        entry = {"layout": "table", "columns": {ours: theirs for ours, theirs in columns.items() if theirs}}
    name = command.source or (stem(folder) or folder.name).replace(":", "-")
    rules = {
        key: str(value.resolve()) if isinstance(value, Path) else value
        for key, value in msgspec.structs.asdict(command).items()
        if key in Collection.__struct_fields__
    }
    sources = {name: entry | {"root": str(root), "license": command.license}}
    return check_section({"name": name, "sources": sources} | rules, Collection, origin="of this command", what="flags")


def read_sources(collection: Collection, base: Path) -> dict[str, SourceContents]:
    """Reads the records of every data set, without opening a picture.

    Raises:
        DataError: A data set is missing or damaged.
    """
    contents = {}
    for name, entry in collection.sources.items():
        columns = (entry.columns,) if entry.layout == "table" else ()
        contents[name] = READERS[entry.layout](name, (base / entry.root).resolve(), entry.license, *columns)
    return leave_out(contents, collection.leave_out)


def name_classes(collection: Collection, base: Path, sources: Mapping[str, SourceContents]) -> Classes:
    """Turns the names of all classes into outputs and taxa.

    Raises:
        DataError: A name cannot be used.
    """
    plants = classes_of(sources)
    corrections = {name: entry.names for name, entry in collection.sources.items()}
    synonyms = {}
    synonyms_from = ""
    if collection.synonyms is not None:
        synonyms = read_synonyms(base / collection.synonyms, names_to_look_up(plants, corrections))
        synonyms_from = collection.synonyms.name
    return build_classes(plants, collection.merge, synonyms, corrections, synonyms_from=synonyms_from)


def stream_pictures(
    sources: Mapping[str, SourceContents], lists: Lists, roots: Mapping[str, Path], command: Preparation
) -> dict[str, pa.Table]:
    """Examines and packs all pictures in one pass, if some are in archives; those in folders are packed with them.

    Pictures of no class that are in an archive are written as files below `roots`.

    Returns:
        What `stream` returns for each source; nothing if there are no archives.
    """
    if command.shards is None or not any(source.archives for source in sources.values()):
        return {}
    tables = {}
    for name, source in sources.items():
        kept = {record.path: record.split not in (None, "train") for record in source.records}
        beside = {
            other.path: roots[name] / other.path
            for others in lists.values()
            for other in others
            if other.source == name and source.archives
        }
        pictures = Stream(name, source.root, source.archives, kept, beside)
        tables[name] = stream(pictures, command.shards, PackOptions(), command.workers)
    return tables


def decode_pictures(
    sources: Mapping[str, SourceContents],
    classes: Classes,
    streamed: Mapping[str, pa.Table],
    command: Preparation,
    min_side_px: int,
) -> tuple[list[LabeledPicture], list[LeftOut]]:
    """Decodes every picture once, if it was not streamed; returns those that can be used, and why not the others."""
    records = [(name, record) for name, source in sources.items() for record in source.records]
    if streamed:
        paths = {name: [record.path for record in source.records] for name, source in sources.items()}
        found = [info for name in sources for info in infos(streamed[name], name, paths[name], min_side_px)]
    else:
        files = [(f"{name}:{record.path}", sources[name].root / record.path) for name, record in records]
        cache = command.out / CACHE_FILE
        found = examine(files, cache=cache, workers=command.workers, min_side_px=min_side_px)
    pictures: list[LabeledPicture] = []
    unusable: list[LeftOut] = []
    for (name, record), info in zip(records, found, strict=True):
        if isinstance(info, LeftOut):
            unusable.append(info)
            continue
        # Day and place are those of the EXIF where the data set gives none; what was planted has no place.
        taken_on = record.taken_on or (info.taken_at and info.taken_at.date())
        coordinates = None if record.cultivated else record.coordinates or info.coordinates
        completed = record
        if (taken_on, coordinates) != (record.taken_on, record.coordinates):
            completed = msgspec.structs.replace(record, taken_on=taken_on, coordinates=coordinates)
        label = classes.labels[name, record.plant.class_id]
        pictures.append(LabeledPicture(source=name, record=completed, label=label, info=info))
    return pictures, unusable


def write_dataset(
    spec: DatasetSpec, pictures: Sequence[LabeledPicture], left_out: Sequence[LeftOut], out: Path
) -> Report:
    """Selects pictures, draws the splits, and writes manifest and report.

    Raises:
        DataError: No picture is left, or the number of outputs is not the expected one.
    """
    rules = spec.collection
    names = name_codes(pictures, spec.classes.taxonomy)
    near_copies = near_copy_groups(pictures, names, rules.near_copy_bits)
    selection = select_pictures(pictures, near_copies.group_of, spec.classes.taxonomy)
    left_out = [*left_out, *selection.left_out]
    if not selection.pictures:
        reasons = [f"{entry.picture}: {entry.reason}" for entry in left_out]
        raise DataError("no picture of the sources can be used", value="; ".join(reasons[:3]), remedy="check the files")
    _require_num_outputs(selection.taxonomy, rules, selection.left_out)
    shares: dict[Split, float] = {
        "test": rules.test_share,
        "validation": rules.validation_share,
        "calibration": rules.calibration_share,
    }
    splits = draw_splits(selection.pictures, selection.groups, selection.group_names, shares, rules.seed)
    report = build_report(
        rules, spec.classes, pictures, near_copies, selection, splits=splits, left_out=left_out, notes=spec.notes
    )
    columns = manifest_columns(selection.pictures, splits, selection.group_names)
    sources = {name: SourceNote(str(spec.roots[name]), entry.note) for name, entry in rules.sources.items()}
    write_manifest(out, columns, selection.taxonomy, sources, further_files=report_files(report))
    return report


def _require_num_outputs(taxonomy: Taxonomy, rules: Collection, left_out: Sequence[LeftOut] = ()) -> None:
    found = len(taxonomy.outputs)
    expected = rules.expect_outputs
    if expected and found != expected:
        by_source = Counter(output.source for output in taxonomy.outputs)
        counts = ", ".join(f"{count} of {source}" for source, count in by_source.items())
        empty = [f"no picture left of {entry.picture}" for entry in left_out if entry.code == "no_pictures"]
        raise DataError(
            "the data sets do not give the expected number of outputs",
            value=", ".join([f"{found}: {counts}", *empty[:5]]),
            limit=str(expected),
            remedy="complete the data sets, or set expect_outputs = 0",
        )


def _print_report(report: Report, out: Path) -> None:
    splits = ", ".join(f"{count:,} {split}" for split, count in report.by_split.items() if count)
    print(f"{report.num_pictures:,} pictures of {report.num_outputs:,} classes: {splits}")
    for entry in report.left_out[:_MOST_LISTED]:
        print(f"  left out ({entry.code}): {entry.picture}: {entry.reason}")
    if len(report.left_out) > _MOST_LISTED:
        print(f"  ... and {len(report.left_out) - _MOST_LISTED:,} more, all in {out / HTML_FILE}")
    for sentence in (*report.notes, *advice(report)):
        print(f"  {sentence}")
    from training.fit.names import MIN_NAMED  # loads scipy, for which --help does not wait

    if (num_calibration := report.by_split.get("calibration", 0)) < MIN_NAMED:
        print(
            f"  Names will be guesses: a promise of how often they are right needs {MIN_NAMED} calibration plants that "
            f"get a name, and there are {num_calibration:,}. Prepare more than 4,000 pictures with "
            "--calibration-share 0.1 (in a collection: calibration_share)."
        )
    for source, licenses in report.licenses.items():
        print(f"  {source}: {licenses.sentence}")
    print(f"Written: {out / MANIFEST_FILE} and {out / HTML_FILE}")


def write_negatives(command: Negatives) -> Counter[str]:
    """Writes the list of pictures without a plant, and returns how many of each split it has.

    Raises:
        DataError: The folder holds no iNaturalist data set, a file of it is damaged, or it shows nothing but plants.
    """
    others = without_a_plant("", command.pictures, command.most, command.seed)
    if not others:
        raise DataError("the data set shows nothing but plants", value=command.pictures, remedy="give another folder")
    write_list(command.out, others, {"": command.pictures})
    return Counter(each.split for each in others)


if __name__ == "__main__":
    main()
