"""Compares two bundles on a frozen set."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from models.bundle import Bundle
from models.bundle_record import Precision
from models.errors import DataError, PictureError
from models.preprocess import picture_to_input
from models.taxonomy import Taxon
from training.bundling.precisions.pictures import in_batches
from training.bundling.precisions.ranges import Pixels
from training.bundling.precisions.speed import speedup
from training.comparison import figures
from training.comparison.answers import Answer, answer_plants, answer_things
from training.comparison.frozen_set import FrozenSet, frozen_set, taxon_ids
from training.comparison.held_out import held_out
from training.comparison.names import name_changes
from training.comparison.refusals import may_be_accepted, refusals
from training.comparison.schema import ComparedBundle, Comparison, FewShot, Rejection, Speed
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split


class Comparing(msgspec.Struct, frozen=True, kw_only=True):
    """What two bundles are compared on, and how."""

    manifest: Manifest
    """Data with the frozen set."""
    split: Split = "test"
    trained_on: tuple[Manifest, ...] = ()
    """Data that the bundles were trained on."""
    things: tuple[Path, ...] = ()
    """Pictures that show no plant."""
    precision: Precision = "fp32"
    few_shot_limit: int
    """Taxa with fewer training pictures are listed."""
    num_speed_pairs: int = 30
    """Runs of each network for the speed; 0 measures none."""
    workers: int = 0


def compare(old: Bundle, new: Bundle, comparing: Comparing) -> Comparison:
    """Compares two bundles.

    Raises:
        BundleError: A bundle has no network of the precision.
        DataError: The bundles and the data share no taxon, or a picture without a plant cannot be decoded.
    """
    pictures = frozen_set(comparing.manifest, comparing.split, old.taxonomy, new.taxonomy, workers=comparing.workers)
    before, after = (_answers(bundle, pictures, comparing.precision) for bundle in (old, new))
    taxa = _taxa(new, pictures)
    names = [pictures.manifest.name(int(row)) for row in pictures.rows_N]
    comparison = Comparison(
        created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        old=_compared(old, pictures, comparing),
        new=_compared(new, pictures, comparing),
        data=pictures.name,
        manifest_sha256=pictures.manifest.sha256,
        num_pictures=len(taxa),
        num_plants=len(set(pictures.plants_N.tolist())),
        num_taxa=len(set(pictures.taxon_ids)),
        num_left_out=pictures.num_left_out,
        accuracy=figures.accuracy(before, after, pictures.plants_N, pictures.taxon_numbers),
        few_shot=_few_shot(before, after, pictures, comparing),
        genera=figures.genera(before, after, taxa),
        calibration=(
            figures.calibration(before, pictures.plants_N),
            figures.calibration(after, pictures.plants_N),
        ),
        verdicts=(figures.verdicts(before), figures.verdicts(after)),
        crossings=figures.crossings(before, after, taxa, names),
        candidate_sets=(
            figures.candidate_sets(before, pictures.taxon_numbers),
            figures.candidate_sets(after, pictures.taxon_numbers),
        ),
        num_things=len(comparing.things),
        rejection=_rejections((old, new), (before, after), comparing),
        names=name_changes(old.taxonomy, new.taxonomy),
        speed=_speed(old, new, pictures, comparing),
    )
    return msgspec.structs.replace(
        comparison, refusals=refusals(comparison), may_be_accepted=may_be_accepted(comparison)
    )


def _answers(bundle: Bundle, pictures: FrozenSet, precision: Precision) -> list[Answer]:
    return answer_plants(bundle, precision, pictures.pixels(bundle.record.input), pictures.taxon_ids)


def _taxa(bundle: Bundle, pictures: FrozenSet) -> list[Taxon]:
    by_id = {taxon.taxon_id: taxon for taxon in bundle.taxonomy.taxa}
    return [by_id[taxon_id] for taxon_id in pictures.taxon_ids]


def _compared(bundle: Bundle, pictures: FrozenSet, comparing: Comparing) -> ComparedBundle:
    record = bundle.record
    return ComparedBundle(
        name=record.name,
        version=record.version,
        created=record.created,
        label_hash=record.label_hash,
        precision=comparing.precision,
        num_taxa=len(bundle.taxonomy.taxa),
        held_out=held_out(record, pictures, comparing.trained_on),
    )


def _few_shot(
    before: Sequence[Answer], after: Sequence[Answer], pictures: FrozenSet, comparing: Comparing
) -> FewShot | None:
    """Counts the training pictures in the data of the set and in the data that the bundles were trained on."""
    counted = [each for each in (pictures.manifest, *comparing.trained_on) if each.has("train")]
    if not counted:
        return None
    most: Counter[str] = Counter()
    for manifest in counted:
        most |= Counter(taxon_ids(manifest, manifest.rows_of("train")))
    return figures.few_shot(
        before,
        after,
        pictures.plants_N,
        pictures.taxon_ids,
        most,
        limit=comparing.few_shot_limit,
        counted_in=", ".join(each.folder.name for each in counted),
    )


def _rejections(
    bundles: tuple[Bundle, Bundle], answers: tuple[list[Answer], list[Answer]], comparing: Comparing
) -> tuple[Rejection, Rejection] | None:
    if not comparing.things:
        return None
    old, new = (
        figures.rejection(
            answer_things(bundle, comparing.precision, in_batches(_pixels(path, bundle) for path in comparing.things)),
            of_plants,
            has_table=bundle.calibration(comparing.precision).plant_head is not None,
        )
        for bundle, of_plants in zip(bundles, answers, strict=True)
    )
    return old, new


def _pixels(path: Path, bundle: Bundle) -> Pixels:
    try:
        return picture_to_input(path.read_bytes(), bundle.record.input)[0]
    except PictureError as error:
        raise DataError("a picture without a plant cannot be decoded", value=path, remedy="remove it") from error


def _speed(old: Bundle, new: Bundle, pictures: FrozenSet, comparing: Comparing) -> Speed | None:
    if not comparing.num_speed_pairs:
        return None
    first = msgspec.structs.replace(pictures, rows_N=pictures.rows_N[:1])
    old_pixels, new_pixels = (next(first.pixels(bundle.record.input)) for bundle in (old, new))
    measured = speedup(
        new.network_path(comparing.precision),
        old.network_path(comparing.precision),
        new_pixels,
        slow_pixels=old_pixels,
        num_pairs=comparing.num_speed_pairs,
    )
    return Speed(old_ms=measured.slow_ms, new_ms=measured.fast_ms, ratio=measured.ratio, num_pairs=measured.num_pairs)
