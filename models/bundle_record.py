"""What `bundle.json` says: records only, each field explained. Files are read and verified in `models/bundle.py`."""

from typing import Annotated, Any, Final, Literal

import msgspec

from models.preprocess import InputSpec
from models.ranking import Thresholds

Precision = Literal["fp32", "fp16", "int8"]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
FILE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
FileName = Annotated[str, msgspec.Meta(pattern=FILE_NAME)]


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured figure that a network file had to reach before release."""

    name: str
    """What was measured, such as "parity: largest difference in probability against PyTorch"."""
    value: float
    """The figure."""
    limit: float
    """The bound it had to keep."""
    passed: bool
    """Whether it kept it."""
    num_pictures: int
    """How many pictures it was measured on."""
    at_least: bool = False
    """Whether `limit` is the least that passes; otherwise it is the most."""


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured share of right answers, or another figure of how right a network is."""

    name: str
    """What was measured, such as "top1_taxon"."""
    value: float
    """Share in [0, 1], or the figure itself where it is no share."""
    data: str
    """Data and split it was measured on."""
    num_pictures: int
    """How many pictures."""
    interval_95: tuple[float, float] | None = None
    """95 % confidence interval, where it is a share (Wilson score) or a difference of two (Tango 1998)."""


class NetworkFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One precision of the network."""

    file: FileName
    """File name inside the bundle."""
    temperature: Annotated[float, msgspec.Meta(gt=0.0)]
    """Divides the logits before the softmax; fitted with this very file on pictures that it never learned from."""
    thresholds: Thresholds = Thresholds()
    """When a verdict may name a rank."""
    stored_as: Literal["float32", "float16", "int8"] = "float32"
    """Number format of the stored weights; half-precision weights are cast back when the file is loaded."""
    gates: tuple[Gate, ...] = ()
    """What was checked before release, with figures."""
    metrics: tuple[Metric, ...] = ()
    """How right this very file is; of the fp32 network it stands in the record's own `metrics`."""
    note: str = ""
    """How the file was made, for people."""


class LeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A precision that was made and not released."""

    gates: tuple[Gate, ...]
    """What was checked; at least one did not pass."""
    metrics: tuple[Metric, ...] = ()
    """How right it was."""
    note: str = ""
    """How it was made, for people."""


CommercialUse = Literal["allowed", "not_allowed", "unknown"]


class DataSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A data set that taught the network."""

    name: str
    num_pictures: int
    """How many of its pictures the network was trained on."""
    licences: dict[str, int]
    """Licence of those pictures -> how many have it."""
    note: str = ""
    """What a user of the weights must know of the data set."""
    num_authors: int = 0
    """Distinct authors of those pictures that are named; the manifest names each."""
    commercial_use: CommercialUse = "unknown"
    """What the licences of those pictures, taken together, say of commercial use: one that forbids it decides."""


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The network's build."""

    name: str
    """timm name, such as "efficientnet_b4"."""
    num_outputs: Annotated[int, msgspec.Meta(ge=1)]
    num_features: Annotated[int, msgspec.Meta(ge=1)]
    num_parameters: Annotated[int, msgspec.Meta(ge=1)]


class BundleRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `bundle.json`."""

    format_version: int
    name: str
    """Name of the model."""
    version: str
    """Version of the model."""
    architecture: Architecture
    input: InputSpec
    label_hash: Sha256
    networks: dict[Precision, NetworkFile]
    metrics: tuple[Metric, ...]
    recipe: dict[str, Any]
    """The resolved recipe that trained the network; of absolute paths only the last part."""
    sources: tuple[DataSource, ...]
    git_commit: str
    """Commit of this project that exported the bundle; "unknown" outside a checkout."""
    created: str
    """Time of sealing, UTC, ISO 8601."""
    files: dict[FileName, Sha256] = {}
    """SHA-256 of every other file."""
    description: str = ""
    """The model card's first paragraph: what it knows, how it was trained, what to beware of."""
    trained_on: str = "unknown"
    """The device that trained it, in words."""
    parts: dict[str, FileName] = {}
    """Further files by what they are, such as the golden picture; one that is not known is ignored with a warning."""
    left_out: dict[Precision, LeftOut] = {}
    """Precisions that failed a gate: their figures are kept, their files are not."""
