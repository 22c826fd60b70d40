"""Reads, writes and verifies a bundle: the folder with a released model, the contract between training and serving.

A bundle is immutable once sealed. `bundle.json` lists the SHA-256 of every other file. Loading verifies all hashes and
refuses a folder whose parts contradict one another; the error names the parts.

A hash shows that a file is the released one, not that this runtime and this device compute the right logits with it.
The golden picture shows that: a drawn picture with the logits of each network file, recorded at the export. The service
runs it after it has opened a network.
"""

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from models.atomic_file import as_json, sync
from models.bundle_record import FILE_NAME, BundleRecord, NetworkFile, Precision, format_of, read_json, read_record
from models.calibration import CALIBRATION_PART, Calibration, read_calibration
from models.errors import BundleError
from models.examples import EXAMPLES_PART, Examples
from models.openvino_session import OpenVinoSession
from models.place import PLACE_PART, PlaceModel, read_place
from models.ranking import Floats, output_probabilities
from models.scoring import AnswerModel
from models.session import OnnxSession
from models.taxonomy import Taxonomy

BUNDLE_FILE: Final = "bundle.json"
TAXA_FILE: Final = "taxa.json"
WEIGHTS_PART: Final = "weights"
"""Role of the weights that a training can start from, under timm's names; the service does not read them."""
WEIGHTS_FILE: Final = "weights.safetensors"
# How protobuf writes the start of a tensor's `external_data`, whose first entry is the file (onnx.proto).
_OTHER_FILE: Final = b"\n\x08location\x12"
GOLDEN_PART: Final = "golden"
GOLDEN_FILE: Final = "golden.json"
KNOWN_PARTS: Final = frozenset({CALIBRATION_PART, EXAMPLES_PART, GOLDEN_PART, PLACE_PART, WEIGHTS_PART})
WITH_PLACE: Final = "+place"
"""Ends the name of the tables in `calibration.npz` that hold for answers with a place."""
# Half-precision arithmetic changed a probability of the demonstration network by at most 0.0015 on drawn pictures.
# A wrong file changes it by far more.
LARGEST_DIFFERENCE: Final = 0.02


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A picture and its recorded logits: the content of `golden.json`."""

    picture: bytes
    """A PNG file, which is preprocessed like any other picture; base64 in JSON."""
    logits: dict[Precision, tuple[float, ...]]
    """Precision -> logits that its file gave, shape (num_outputs,), not calibrated."""


def check_golden(golden: Golden, precision: Precision, logits: Floats, temperature: float) -> None:
    """Compares the logits of an opened network with the recorded ones.

    Args:
        golden: The golden picture of the bundle.
        precision: That of the network.
        logits: What the network gives for `golden.picture`, shape (num_outputs,).
        temperature: That of the network, since calibrated probabilities are compared.

    Raises:
        BundleError: A probability differs by more than 0.02, or the picture has no logits of that precision.
    """
    recorded = golden.logits.get(precision)
    if recorded is None:
        raise BundleError(
            "the golden picture has no recorded logits of that precision",
            value=precision,
            limit=" or ".join(golden.logits),
            remedy="export the bundle again",
        )
    difference = float("nan")
    if logits.shape == (len(recorded),) and np.isfinite(logits).all():
        expected = output_probabilities(np.asarray(recorded), temperature)
        difference = float(np.abs(output_probabilities(logits, temperature) - expected).max())
    if not difference <= LARGEST_DIFFERENCE:  # also true of NaN
        raise BundleError(
            f"the {precision} network does not give the recorded answer to the golden picture",
            value=f"a difference in probability of {difference:.3f}",
            limit=f"at most {LARGEST_DIFFERENCE}",
            remedy="fetch the bundle again; if the error stays, this runtime or device computes wrong results",
        )


class Bundle(msgspec.Struct, frozen=True):
    """A verified bundle."""

    folder: Path
    record: BundleRecord
    taxonomy: Taxonomy
    warnings: tuple[str, ...] = ()
    """A sentence for each thing that the bundle lacks, or that this version ignores."""

    def network(self, precision: Precision) -> NetworkFile:
        """Returns the record of one network; a BundleError says that the bundle has none of that precision."""
        found = self.record.networks.get(precision)
        if found is None:
            raise BundleError(
                "the bundle has no network of that precision",
                value=precision,
                limit=" or ".join(self.record.networks),
                remedy="choose one of its precisions, or export the bundle with that one too",
            )
        return found

    def golden(self) -> Golden | None:
        """Returns the golden picture, or None, as in bundles of early versions; a BundleError if it is unreadable."""
        part = self.record.parts.get(GOLDEN_PART)
        return None if part is None else read_json(self.folder / part, Golden)

    def calibration(self, precision: str) -> Calibration:
        """Returns the tables of one network, all None if the bundle has none; a BundleError if they are unreadable.

        `WITH_PLACE` after the precision gives those for answers with a place.
        """
        part = self.record.parts.get(CALIBRATION_PART)
        tables = {} if part is None else read_calibration(self.folder / part)
        return tables.get(precision, Calibration())

    def examples(self) -> Examples | None:
        """Returns the reference pictures, or None if the bundle has none; a BundleError if they are unreadable."""
        part = self.record.parts.get(EXAMPLES_PART)
        return None if part is None else Examples(self.folder / part, self.record.files[part])

    def answer_model(self, precision: Precision) -> AnswerModel:
        """Returns what turns the outputs of one network into answers; errors as `network` and `calibration`."""
        network = self.network(precision)
        at = self.taxonomy.position_of
        return AnswerModel(
            taxonomy=self.taxonomy,
            temperature=network.temperature,
            thresholds=network.thresholds,
            promises=network.promises,
            calibration=self.calibration(precision),
            is_held_out=not self.record.other_data,
            place=self._place_model(precision),
            mistaken=network.mistaken,
            guesses=network.guesses,
            joint=network.joint,
            look_alikes={
                at[one]: tuple(map(at.__getitem__, others)) for one, others in self.record.look_alikes.items()
            },
        )

    def _place_model(self, precision: Precision) -> PlaceModel | None:
        part = self.record.parts.get(PLACE_PART)
        rule = self.network(precision).place
        if part is None or rule is None:
            return None
        prior = read_place(self.folder / part, len(self.taxonomy.taxa))
        return PlaceModel(prior, rule, self.calibration(f"{precision}{WITH_PLACE}").conformal)

    def weights_path(self) -> Path:
        """Returns the path of the weights that a training can start from; a BundleError if there are none."""
        part = self.record.parts.get(WEIGHTS_PART)
        if part is None:
            raise BundleError(
                "the bundle has no weights that a training can start from",
                value=self.folder,
                limit=f"a bundle with {WEIGHTS_FILE}",
                remedy="export it with training/export.py --with-weights, or give the checkpoint that it was made from",
            )
        return self.folder / part

    def network_path(self, precision: Precision) -> Path:
        """Returns the path of a network file."""
        return self.folder / self.network(precision).file

    def open_session(
        self, precision: Precision, *, openvino: bool = False, **options: Any
    ) -> OnnxSession | OpenVinoSession:
        """Opens a network.

        Args:
            precision: That of the network; bf16 always runs with OpenVINO.
            openvino: Whether to run another precision with OpenVINO too.
            options: Those of `OpenVinoSession` or `OnnxSession`.

        Raises:
            BundleError: The file does not load, or its outputs are not the bundle's.
            InputError: OpenVINO is not installed, or the processor does not compute in bfloat16.
        """
        path = self.network_path(precision)
        session: OnnxSession | OpenVinoSession
        if openvino or precision == "bf16":
            session = OpenVinoSession(path, bf16=precision == "bf16", **options)
        else:
            session = OnnxSession(path, **options)
        if session.output_keys != self.taxonomy.output_keys:
            raise BundleError(
                f"{path.name} and {TAXA_FILE} name different outputs",
                value=f"{len(session.output_keys)} outputs",
                limit=f"the {len(self.taxonomy.outputs)} outputs of {TAXA_FILE} in the same order",
                remedy="export the bundle again",
            )
        return session


def seal_bundle(folder: Path, record: BundleRecord, taxonomy: Taxonomy, files: dict[str, Path]) -> Bundle:
    """Writes and verifies a bundle atomically: if anything fails, even the power, no folder or a whole one is left.

    Args:
        folder: The folder to create; must not exist, since bundles are immutable.
        record: The content of `bundle.json`; `files` and `format_version` are filled in here.
        taxonomy: The content of `taxa.json`.
        files: Name inside the bundle -> file to copy.

    Returns:
        The bundle as read back from disk.

    Raises:
        BundleError: The folder exists, a file name is not allowed, or the written bundle fails verification.
    """
    if folder.exists():
        raise BundleError(
            "a bundle is immutable, and its folder already exists",
            value=folder,
            remedy="choose a new folder or delete the old bundle",
        )
    for name in files:  # a path would be written outside of the bundle
        if name in {BUNDLE_FILE, TAXA_FILE} or not re.fullmatch(FILE_NAME, name):
            raise BundleError(
                "a file in a bundle cannot have that name",
                value=repr(name),
                limit=f"letters, digits, dots, - and _, and not {BUNDLE_FILE} or {TAXA_FILE}",
                remedy="rename it",
            )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        draft = Path(temporary) / "bundle"
        draft.mkdir()
        for name, path in files.items():
            shutil.copyfile(path, draft / name)
        (draft / TAXA_FILE).write_bytes(as_json(taxonomy))
        hashes = {path.name: file_sha256(path) for path in sorted(draft.iterdir())}
        part = record.parts.get(CALIBRATION_PART)
        tables = {} if part is None else read_calibration(draft / part)
        version = format_of(record, taxonomy, tables.values())
        sealed = msgspec.structs.replace(record, files=hashes, format_version=version)
        (draft / BUNDLE_FILE).write_bytes(as_json(sealed))
        load_bundle(draft)
        for path in (*draft.iterdir(), draft):
            sync(path)
        draft.rename(folder)
        sync(folder.parent)
    return load_bundle(folder)


def load_bundle(folder: Path) -> Bundle:
    """Reads a bundle and verifies its format, the hash of every file, the label hash and the number of outputs.

    A symbolic link is followed only once, here: the pointer of a registry may move while the bundle is in use.

    Raises:
        BundleError: A file is missing or damaged, or two parts contradict each other; the message says which.
    """
    try:
        return _load_bundle(folder.resolve())
    except RecursionError as error:
        raise BundleError.unreadable(folder / BUNDLE_FILE, "values that are nested too deeply") from error
    except (OSError, RuntimeError) as error:  # RuntimeError: symbolic links in a circle
        raise BundleError.unreadable(folder, error) from error


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _load_bundle(folder: Path) -> Bundle:
    path = folder / BUNDLE_FILE
    if not path.is_file():
        raise BundleError(
            "the folder is not a bundle",
            value=folder,
            limit=f"a folder with {BUNDLE_FILE}",
            remedy="give the folder that training/export.py wrote",
        )
    record, warnings = read_record(path)
    _verify_files(folder, record)
    taxonomy = read_json(folder / TAXA_FILE, Taxonomy)
    _require_equal("label hash", BUNDLE_FILE, record.label_hash, TAXA_FILE, taxonomy.label_hash)
    _require_equal("number of outputs", BUNDLE_FILE, record.architecture.num_outputs, TAXA_FILE, len(taxonomy.outputs))
    named = {*record.look_alikes, *chain.from_iterable(record.look_alikes.values())}
    for network in record.networks.values():
        named.update(network.mistaken.taxon_ids if network.mistaken else ())
    if lacking := sorted(named - taxonomy.by_id.keys()):
        raise BundleError(
            f"{BUNDLE_FILE} names taxa that {TAXA_FILE} lacks", value=lacking, remedy="fetch or export the bundle again"
        )
    unknown = sorted(set(record.parts) - KNOWN_PARTS)
    warnings += tuple(f"This version does not know the bundle part {part!r} and ignores it." for part in unknown)
    return Bundle(folder, record, taxonomy, (*warnings, *_check_tables(folder, record, taxonomy)))


def _verify_files(folder: Path, record: BundleRecord) -> None:
    needed = {TAXA_FILE, *(network.file for network in record.networks.values()), *record.parts.values()}
    for name in sorted(needed | set(record.files)):
        if name not in record.files:
            raise BundleError(f"{BUNDLE_FILE} has no hash for {name}", remedy="export the bundle again")
        if not (folder / name).is_file():
            raise BundleError(f"{name} is missing from the bundle", value=folder, remedy="fetch the bundle again")
        _require_equal(f"SHA-256 of {name}", BUNDLE_FILE, record.files[name], "the file", file_sha256(folder / name))
    if not record.networks:
        raise BundleError("the bundle has no network", value=folder, remedy="export it again")
    for file in {network.file for network in record.networks.values()}:
        _require_own_weights(folder / file)
    for precision in record.networks.keys() & record.left_out.keys():
        raise BundleError("a precision is both released and left out", value=precision, remedy="export it again")


def _require_own_weights(path: Path) -> None:
    """Refuses a network with weights in another file, which ONNX Runtime would read unverified."""
    before = b""
    with path.open("rb") as stream:
        while part := stream.read(1_000_000):
            if _OTHER_FILE in before + part:
                raise BundleError(
                    f"{path.name} keeps weights in another file",
                    limit="a network in one file, which its hash verifies",
                    remedy="export it again without external data",
                )
            before = part[-len(_OTHER_FILE) :]


def _check_tables(folder: Path, record: BundleRecord, taxonomy: Taxonomy) -> Iterator[str]:
    """Checks the tables of all networks; yields a sentence for each network without tables, if another has some."""
    part = record.parts.get(CALIBRATION_PART)
    if part is None:
        return
    tables = read_calibration(folder / part)
    num_taxa = "number of taxa", TAXA_FILE, len(taxonomy.taxa)
    num_features = "number of features", BUNDLE_FILE, record.architecture.num_features
    for found in tables.values():
        for table in filter(None, (found.conformal, found.conformal_mistaken)):
            _require_equal(*num_taxa, part, len(table.prior_T))
        if found.features:
            _require_equal(*num_features, part, len(found.features.center_F))
        for head in filter(None, (found.plant_head, found.known_head)):
            _require_equal(*num_features, part, len(head.weight_F))
    if PLACE_PART in record.parts:
        read_place(folder / record.parts[PLACE_PART], len(taxonomy.taxa))
    for precision in sorted(record.networks.keys() - tables.keys()):
        yield (
            f"The bundle has no calibration tables for its {precision} network. With that network the service cannot "
            "tell plants from other things, and gives no candidate set."
        )


def _require_equal(what: str, first: str, first_value: object, second: str, second_value: object) -> None:
    if first_value != second_value:
        raise BundleError(
            f"the {what} differs between {first} and {second}",
            value=second_value,
            limit=str(first_value),
            remedy="the bundle was changed after it was sealed; fetch or export it again",
        )
