"""The records of `bundle.json`, and the reader of formats 2 to 6. `models/bundle.py` verifies the files.

The rule for changes: a field that an older reader cannot ignore, because answers would differ without it, raises the
format version. A field that it can ignore is added with a default, and the version stays. Readers therefore ignore
unknown fields of these records, and name them in `Bundle.warnings`. Format 3 is format 2 with the precision bf16, which
names the file of fp32; format 4 also has names in several languages and POWO ids in `taxa.json`; format 5 has a
familiarity that was fitted on unknown plants, or limits for taxa that are often mistaken; format 6 has rules for
several pictures together. A bundle without these has format 2. In `input`, `thresholds` and the other JSON files
every field changes answers: any new field there raises the version, and an unknown one is an error.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from models.calibration import Calibration, CoverageKind
from models.errors import BotanifyError, BundleError
from models.place import PlaceRule
from models.preprocess import InputSpec
from models.ranking import MistakenTaxa, Promises, Thresholds
from models.scoring import GuessShare, JointRule
from models.taxonomy import Taxonomy

Precision = Literal["fp32", "fp16", "bf16"]
"""bf16 is the file of fp32, computed in bfloat16 with OpenVINO; it has its own temperature, checks and tables."""
Provider = Literal["cpu", "cuda", "openvino"]
"""What runs a network: ONNX Runtime on a CPU or a GPU, or OpenVINO on a CPU."""
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
FILE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
FileName = Annotated[str, msgspec.Meta(pattern=FILE_NAME)]
MOST_LOOK_ALIKES: Final = 3
"""Look-alikes of each taxon: with the plant itself as many as stand side by side on a page."""
_FEW: Final = msgspec.Meta(max_length=1_000)  # of a list that an answer searches or `/model` tells whole


class Check(msgspec.Struct, frozen=True):
    """A release check of a network file: a measured figure and its limit."""

    name: str
    """What was measured, such as "parity: largest difference in probability from PyTorch"."""
    value: float
    limit: float
    passed: bool
    num_pictures: int
    at_least: bool = False
    """True if `limit` is the smallest value that passes, False if it is the largest."""


class Metric(msgspec.Struct, frozen=True):
    """A measured figure of how accurate a network is."""

    name: str
    """What was measured, such as "top1_taxon"."""
    value: float
    """A share in [0, 1], or another figure such as the negative log-likelihood."""
    data: str
    """Data and split it was measured on."""
    num_pictures: int
    """Number of pictures that it was measured on."""
    interval_95: tuple[float, float] | None = None
    """95 % confidence interval of a share (Wilson score) or of a difference of two shares (Tango 1998), else None."""


class MeasuredCoverage(msgspec.Struct, frozen=True):
    """How often candidate sets held the right taxon on test pictures, one picture at a time."""

    kind: CoverageKind
    """Whether it is that of the mean plant (marginal) or of the mean taxon (macro)."""
    coverage: float
    """The coverage that was asked for."""
    covered: float
    """Share of the pictures whose set held it (marginal), or mean of the taxa's shares (macro)."""
    num_pictures: int
    """Number of test pictures."""
    data: str
    """Data and split it was measured on."""
    interval_95: tuple[float, float] | None = None
    """95 % confidence interval (Wilson score) of a share, else None."""


class NetworkFile(msgspec.Struct, frozen=True):
    """One precision of the network."""

    file: FileName
    temperature: Annotated[float, msgspec.Meta(ge=0.01, le=100.0)]
    """Divides the logits before the softmax; fitted on this file's logits for pictures that it was not trained on."""
    thresholds: Thresholds = Thresholds()
    promises: Promises = Promises()
    """What calibration plants prove about the names of each rank at these thresholds."""
    stored_as: Literal["float32", "float16"] = "float32"
    """Number format of the stored weights; float16 weights of an fp32 network are cast to float32 on loading."""
    checks: Annotated[tuple[Check, ...], _FEW] = ()
    metrics: Annotated[tuple[Metric, ...], _FEW] = ()
    """How accurate this file is; the figures of the fp32 network are in the record's own `metrics`."""
    note: str = ""
    """How the file was made, in words."""
    coverages: Annotated[tuple[MeasuredCoverage, ...], _FEW] = ()
    """Measured coverages of its candidate sets; empty if they were not measured."""
    place: PlaceRule | None = None
    """How place changes its scores; None without the part `place`, or if place does not help this network."""
    mistaken: MistakenTaxa | None = None
    """Taxa with a species threshold, a promise and candidate sets of their own."""
    guesses: Annotated[tuple[GuessShare, ...], _FEW] = ()
    """How often answers without a name have the right taxon all the same, by ascending score."""
    joint: Annotated[tuple[JointRule, ...], _FEW] = ()
    """What holds for several pictures of one plant together, ascending by their number."""

    def measured(self, kind: CoverageKind, coverage: float) -> MeasuredCoverage | None:
        """Returns what was measured for a coverage, or None."""
        return next((each for each in self.coverages if (each.kind, each.coverage) == (kind, coverage)), None)


class FailedNetwork(msgspec.Struct, frozen=True):
    """A precision that was made but not released, because at least one of its checks failed."""

    checks: Annotated[tuple[Check, ...], _FEW]
    metrics: Annotated[tuple[Metric, ...], _FEW] = ()
    note: str = ""
    """How it was made, in words."""


CommercialUse = Literal["allowed", "not_allowed", "unknown"]


class DataSource(msgspec.Struct, frozen=True):
    """A data set that the network was trained on."""

    name: str
    num_pictures: int
    """Number of its pictures that the network was trained on."""
    licenses: dict[str, int]
    """License of those pictures -> number of pictures."""
    note: str = ""
    """What users of the weights must know about the data set."""
    num_authors: int = 0
    """Number of distinct authors that the manifest names for those pictures."""
    commercial_use: CommercialUse = "unknown"
    """Whether the licenses of those pictures allow commercial use; one that forbids it is enough for "not_allowed"."""


class Architecture(msgspec.Struct, frozen=True):
    """The architecture of the network."""

    name: str
    """timm name, such as "efficientnet_b4"."""
    num_outputs: Annotated[int, msgspec.Meta(ge=1)]
    """Outputs, of which several may share a taxon."""
    num_features: Annotated[int, msgspec.Meta(ge=1)]
    """Width of the pooled features."""
    num_parameters: Annotated[int, msgspec.Meta(ge=1)]
    """Weights of the network."""


class BundleRecord(msgspec.Struct, frozen=True):
    """The content of `bundle.json`."""

    format_version: int
    name: str
    version: str
    architecture: Architecture
    input: InputSpec
    label_hash: Sha256
    networks: dict[Precision, NetworkFile]
    metrics: Annotated[tuple[Metric, ...], _FEW]
    recipe: dict[str, Any]
    """The resolved recipe of the training run; absolute paths are cut to their last part."""
    sources: Annotated[tuple[DataSource, ...], _FEW]
    git_commit: str
    """Commit of botanify that exported the bundle; "unknown" outside of a git checkout."""
    created: str
    """When the bundle was sealed, UTC, ISO 8601."""
    files: dict[FileName, Sha256] = {}
    """SHA-256 of every other file."""
    description: str = ""
    """The model card's first paragraph: what the model names, how it was trained, and its limits."""
    trained_on: str = "unknown"
    """The device that it was trained on, in words."""
    parts: dict[str, FileName] = {}
    """Role -> further file, such as the golden picture; an unknown role is ignored with a warning."""
    left_out: dict[Precision, FailedNetwork] = {}
    """Precisions that failed a check: the bundle holds their figures but not their files."""
    initial_weights: str = "unknown"
    """What the network started from, in words: random weights, published ones, or a file."""
    manifest_sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the manifest that the network was trained with; empty if unknown."""
    trained_commit: str = "unknown"
    """Commit of botanify that trained the network; "unknown" outside of a git checkout."""
    other_data: bool = False
    """Whether the metrics come from another manifest than the one that the network was trained with."""
    look_alikes: dict[str, Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_LOOK_ALIKES)]] = {}
    """Taxon id -> ids of the taxa that it is often taken for on calibration plants, the most frequent first."""


FORMAT_VERSION: Final = 2
"""What is written, unless the bundle has something newer."""
BF16_FORMAT_VERSION: Final = 3
NAMES_FORMAT_VERSION: Final = 4
"""What is written for a bundle with names by language or POWO ids."""
KNOWN_FORMAT_VERSION: Final = 5
"""What is written for a bundle whose familiarity was fitted on unknown plants, or with taxa that are often mistaken."""
NEWEST_FORMAT_VERSION: Final = 6
"""What is written for a bundle with rules for several pictures."""


def format_of(record: BundleRecord, taxonomy: Taxonomy, tables: Iterable[Calibration]) -> int:
    """Returns the oldest format that holds a bundle with these tables, so that older readers read it if they can."""
    networks = record.networks.values()
    if any(network.joint for network in networks):
        return NEWEST_FORMAT_VERSION
    if any(each.known_head for each in tables) or any(network.mistaken for network in networks):
        return KNOWN_FORMAT_VERSION
    if any(taxon.names or taxon.powo_id for taxon in taxonomy.taxa):
        return NAMES_FORMAT_VERSION
    has_bf16 = "bf16" in {*record.networks, *record.left_out}
    return BF16_FORMAT_VERSION if has_bf16 else FORMAT_VERSION


_Record = TypeVar("_Record", bound=msgspec.Struct)


def read_record(path: Path) -> tuple[BundleRecord, tuple[str, ...]]:
    """Reads `bundle.json`.

    Returns:
        The record, and a sentence for each thing that is ignored in it.

    Raises:
        BundleError: The file has a format that this version cannot read, or is damaged.
    """
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        version = content["format_version"]  # first, because another format may have other fields
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise BundleError(
            f"{path} is not a bundle record",
            limit="a JSON object with format_version",
            remedy="fetch or export the bundle again",
        ) from error
    if version not in range(FORMAT_VERSION, NEWEST_FORMAT_VERSION + 1):
        newer = isinstance(version, int) and version > NEWEST_FORMAT_VERSION
        raise BundleError(
            f"{path} has another bundle format",
            value=version,
            limit=f"format {FORMAT_VERSION} to {NEWEST_FORMAT_VERSION}",
            remedy="update botanify, or export the bundle again" if newer else "export the bundle again",
        )
    try:
        record = msgspec.convert(content, BundleRecord)
    except (msgspec.ValidationError, BotanifyError) as error:
        raise BundleError.unreadable(path, error) from error
    fields = dict.fromkeys(_unknown_fields(content, record))
    ignored = tuple(f"This version does not know the field {field} of {path.name} and ignores it." for field in fields)
    return record, ignored


def read_json(path: Path, kind: type[_Record]) -> _Record:
    """Reads another JSON file of a bundle; a BundleError says that it cannot be read or is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, BotanifyError) as error:
        raise BundleError.unreadable(path, error) from error


def _unknown_fields(content: Any, record: Any, place: str = "") -> Iterator[str]:
    """Yields the place of each field of the content that its record does not have, such as "sources[].url"."""
    if isinstance(record, msgspec.Struct):
        for key, value in content.items():
            if key in record.__struct_fields__:
                yield from _unknown_fields(value, getattr(record, key), f"{place}.{key}".lstrip("."))
            else:
                yield f"{place}.{key}".lstrip(".")
    elif isinstance(record, dict):
        for key, value in record.items():
            yield from _unknown_fields(content[key], value, f"{place}.{key}")
    elif isinstance(record, tuple):
        for given, value in zip(content, record, strict=True):
            yield from _unknown_fields(given, value, f"{place}[]")
