"""The features of a frozen network: each picture runs through it once, and the classifier is trained on what it gave.

They lie beside the data in float16, in parts. A run that was killed goes on with the next part, and one with other
settings of the classifier finds all of them. Their folder has the hash of all that they depend on in its name.
"""

import hashlib
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Final

import msgspec
import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from models.atomic_file import replaced
from models.errors import DataError
from models.network import PlantNetwork
from training.dataset.manifest import Ints, Manifest
from training.engine.device import Ranks, amp_dtype
from training.loading.augment import Normalizer
from training.loading.data import Features, still_loader
from training.loading.negatives import RunInput

PART_PICTURES: Final = 4096
"""Pictures of a part, which a run that is killed loses."""


def stored_features(
    inputs: RunInput, manifest: Manifest, network: PlantNetwork, device: torch.device, ranks: Ranks
) -> Features:
    """Returns the features of training, validation and no class; computes and stores those that are missing.

    Raises:
        DataError: A picture cannot be read, or the network gives values that are not finite in float16.
    """
    added = np.concatenate([np.full(len(each.paths), each.label) for each in (inputs.negatives, inputs.unknown)])
    rows = np.concatenate([manifest.rows_of("train"), manifest.rows_of("validation"), -1 - np.arange(len(added))])
    folder = manifest.folder / f"features-{_key(inputs, manifest, network, device)[:16]}"
    parts = [rows[first : first + PART_PICTURES] for first in range(0, len(rows), PART_PICTURES)]
    files = [folder / f"{number:05}.npy" for number in range(len(parts))]
    own = [number for number in range(ranks.rank, len(files), ranks.num_ranks) if not files[number].exists()]
    folder.mkdir(exist_ok=True)
    found = _run(inputs, manifest, network.to(device), device, np.concatenate([rows[:0], *(parts[at] for at in own)]))
    waiting = np.empty((0, network.num_features), np.float16)
    for number in track(own, "features", console=Console(stderr=True), disable=not ranks.is_main):
        while len(waiting) < len(parts[number]):
            waiting = np.concatenate([waiting, next(found)])
        with replaced(files[number]) as stream:
            np.save(stream, waiting[: len(parts[number])])
        waiting = waiting[len(parts[number]) :]
    ranks.sum([0])  # no rank reads before all have written
    position = np.full(len(manifest) + len(added), -1)
    position[rows] = np.arange(len(rows))
    labels = np.concatenate([manifest.labels[rows[rows >= 0]], added])
    return Features(np.concatenate([np.load(file) for file in files]), labels, position)


def _run(
    inputs: RunInput, manifest: Manifest, network: PlantNetwork, device: torch.device, rows: Ints
) -> Iterator[np.ndarray]:
    """Yields the features of pictures as the service sees them, a batch at a time."""
    network.eval()
    normalize = Normalizer(inputs.spec, device)
    dtype = amp_dtype(inputs.recipe.hardware, device)
    added = (inputs.negatives, inputs.unknown)
    loader = still_loader(manifest, rows, inputs.spec, inputs.recipe.data, added=added, pin=device.type == "cuda")
    with torch.inference_mode(), nullcontext() if dtype is None else torch.amp.autocast(device.type, dtype=dtype):
        for pixels, _ in loader:
            on_device = normalize(pixels.to(device, non_blocking=True))
            found = network.features(on_device).half().cpu().numpy()
            if not np.isfinite(found).all():
                raise DataError(
                    "the features of the network are too large for float16",
                    value=inputs.recipe.network.architecture,
                    remedy="train without frozen_stages = all",
                )
            yield found


def _key(inputs: RunInput, manifest: Manifest, network: PlantNetwork, device: torch.device) -> str:
    """Returns the hash of all that features depend on: pictures, their preprocessing, weights and precision."""
    # Another folder may have pictures of the same names, as 0001.jpg.
    added = [(each.sha256, [path.stat().st_size for path in each.paths]) for each in (inputs.negatives, inputs.unknown)]
    told = (PART_PICTURES, manifest.sha256, added, inputs.spec, str(amp_dtype(inputs.recipe.hardware, device)))
    digest = hashlib.sha256(msgspec.json.encode(told))
    head = {parameter.data_ptr() for parameter in network.head_parameters()}
    for name, value in network.state_dict().items():
        if value.data_ptr() not in head:
            digest.update(name.encode())
            digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()
