"""Pictures that network files are made and judged with, through the very preprocessing of the service."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from models.errors import DataError
from models.preprocess import InputSpec
from models.session import NetworkSession, OnnxSession
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.evaluation.predict import Logits, predict
from training.loading.data import evaluation_loader
from training.recipe import DataRecipe
from training.release.precisions.ranges import Pixels


class Pictures(msgspec.Struct, frozen=True):
    """Some pictures of prepared data."""

    manifest: Manifest
    rows: npt.NDArray[np.int64]
    """Rows of the manifest."""
    spec: InputSpec
    """What the network expects."""
    name: str
    """Data and split, for people."""
    workers: int = 0
    """Loader processes; 0 loads in this one."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Position of each picture's output."""
        return self.manifest.labels[self.rows]

    def logits(self, network: Path) -> Logits:
        """What a network file answers, one picture at a time as the service runs it on a CPU."""
        session: NetworkSession = OnnxSession(network)
        loader = evaluation_loader(self.manifest, self.rows, self.spec, DataRecipe(workers=self.workers), batch_size=1)
        return predict(loader, lambda pixels: session.run(pixels.numpy()).logits)[0]

    def pixels(self) -> Iterator[Pixels]:
        """Network input of one picture after the other, each of shape (1, 3, height, width)."""
        loader = evaluation_loader(self.manifest, self.rows, self.spec, DataRecipe(workers=self.workers), batch_size=1)
        for pixels, _ in loader:
            yield pixels.numpy()

    def sample(self, most: int, seed: int = 0) -> "Pictures":
        """At most so many of them, drawn at random and the same every time."""
        if len(self.rows) <= most:
            return self
        drawn = np.random.default_rng(seed).choice(self.rows, most, replace=False)
        return msgspec.structs.replace(self, rows=np.sort(drawn))


def require_unseen(further: Manifest, manifest: Manifest) -> None:
    """Refuses to judge by pictures that stand in the data already, whatever they are there for.

    Args:
        further: Its test split shall judge too.
        manifest: What the network learned from.

    Raises:
        DataError: Some pictures are the same, by their bytes or by their names.
    """
    shared = 0
    for column in ("sha256", "picture_id"):
        judging = further.table[column].take(further.rows_of("test"))
        shared = max(shared, int(pc.sum(pc.is_in(judging, value_set=manifest.table[column])).as_py() or 0))
    if shared:
        raise DataError(
            f"pictures of {further.folder} stand in {manifest.folder} too",
            value=f"{shared} of its {len(further.rows_of('test'))} test pictures",
            limit="none: they may have taught the network, and count twice",
            remedy="judge on other data",
        )


def pictures_of(manifest: Manifest, split: Split, spec: InputSpec, workers: int) -> Pictures:
    """All pictures of a split."""
    return Pictures(manifest, manifest.rows_of(split), spec, f"{manifest.folder.name}, {split} split", workers)
