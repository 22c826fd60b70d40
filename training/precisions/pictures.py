"""Pictures that network files are made and judged with, through the very preprocessing of the service."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from models.preprocess import InputSpec
from models.session import NetworkSession, OnnxSession
from training.data import judged_loader
from training.manifest import Manifest
from training.precisions.ranges import Pixels
from training.predict import Logits, predict
from training.recipe import DataRecipe
from training.sources.record import Split


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
        loader = judged_loader(self.manifest, self.rows, self.spec, DataRecipe(workers=self.workers), batch_size=1)
        return predict(loader, lambda pixels: session.run(pixels.numpy()).logits)[0]

    def pixels(self) -> Iterator[Pixels]:
        """Network input of one picture after the other, each of shape (1, 3, height, width)."""
        loader = judged_loader(self.manifest, self.rows, self.spec, DataRecipe(workers=self.workers), batch_size=1)
        for pixels, _ in loader:
            yield pixels.numpy()

    def sample(self, most: int, seed: int = 0) -> "Pictures":
        """At most so many of them, drawn at random and the same every time."""
        if len(self.rows) <= most:
            return self
        drawn = np.random.default_rng(seed).choice(self.rows, most, replace=False)
        return msgspec.structs.replace(self, rows=np.sort(drawn))


def pictures_of(manifest: Manifest, split: Split, spec: InputSpec, workers: int) -> Pictures:
    """All pictures of a split."""
    return Pictures(manifest, manifest.rows_of(split), spec, f"{manifest.folder.name}, {split} split", workers)
