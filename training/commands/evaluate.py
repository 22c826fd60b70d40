"""The flags of evaluate.py."""

from pathlib import Path

from models.bundle_record import Precision
from training.dataset.sources.record import Split
from training.recipe import WholeNumber
from training.toml_file import Section


class Evaluate(Section, frozen=True, kw_only=True):
    """Measures a checkpoint, a bundle, or both."""

    data: Path
    """Folder written by training/prepare.py."""
    shards: str = ""
    """Folder or URL (s3://, gs://) with the shards of packed data; default: the data folder."""
    checkpoint: Path | None = None
    """Checkpoint of training/train.py; measured without calibration and in single precision, at the input size of the
    bundle if --bundle is given too."""
    bundle: Path | None = None
    """Bundle; measured as it is served."""
    precision: Precision = "fp32"
    """Precision of the bundle's network."""
    split: Split = "test"
    """Split whose pictures are used."""
    other_data: bool = False
    """Measure with data that the network was not trained with, such as another split. Its test pictures may be training
    pictures, so every figure and file name says that it is other data."""
    negatives: Path | None = None
    """Pictures that show no plant, a folder or a CSV list: measures how many of them the bundle names as a plant."""
    negatives_split: str = "test"
    """Of a list with the column `split`, the rows that are used, also for --unknown; export fits on the rows of split
    fit or train."""
    unknown: Path | None = None
    """Pictures of plants whose species the bundle does not know: measures how many of them it names as a species."""
    out: Path | None = None
    """Folder for the report (JSON), the per-class table and the predictions (CSV), pictures of mistakes, and the
    learning curves of the checkpoint's run."""
    workers: WholeNumber = 2
    """Loader processes; 0 loads in the main process."""
