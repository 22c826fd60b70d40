"""The features of a frozen network: each picture runs through it once, and the classifier is trained on what it gave.

They lie beside the data in float16, in parts. A run that was killed goes on with the next part, and one with other
settings of the classifier finds all of them. The folder's name has the hash of all that features of plants depend on,
the name of a part at the end that of the pictures of no class, too.
"""

import hashlib
import os
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec
import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from models.atomic_file import write_bytes
from models.errors import DataError
from models.network import PlantNetwork
from training.dataset.manifest import Ints, Manifest
from training.engine.device import Ranks, allow_tf32, amp_dtype
from training.engine.stop_signal import Stopped, StopSignal
from training.loading.augment import Normalizer
from training.loading.data import EVALUATION_BATCH, Features, still_loader
from training.loading.negatives import RunInput

BATCH: Final = EVALUATION_BATCH
PART_BATCHES: Final = 32
"""Batches of a part, which a run that is killed loses."""


def stored_features(
    inputs: RunInput, manifest: Manifest, network: PlantNetwork, device: torch.device, ranks: Ranks
) -> Features:
    """Returns the features of training, validation and no class; computes and stores those that are missing.

    They lie beside the data, or in the folder of the run where that of the data cannot be written.

    Raises:
        DataError: A picture cannot be read, or the network gives values that are not finite in float16.
        Stopped: The process received SIGTERM or Ctrl-C; the parts that are whole stay.
    """
    added = np.concatenate([np.full(len(each.paths), each.label) for each in inputs.others])
    rows = np.concatenate([manifest.rows_of("train"), manifest.rows_of("validation"), -1 - np.arange(len(added))])
    root = ranks.broadcast(manifest.folder if os.access(manifest.folder, os.W_OK) else inputs.recipe.run.run)
    folder = root / f"features-{_key(inputs, manifest, network, device)[:16]}"
    size = BATCH * PART_BATCHES
    # With sizes, since another folder may have pictures of the same names, as 0001.jpg.
    listed = [(each.sha256, [path.stat().st_size for path in each.paths]) for each in inputs.others]
    others = hashlib.sha256(msgspec.json.encode(listed)).hexdigest()[:16]
    files = {
        first: folder / f"{first:08}{others if first + size > len(rows) - len(added) else ''}.f16"
        for first in range(0, len(rows), size)
    }
    missing = ranks.broadcast([first for first, file in files.items() if not file.exists()])
    own = [rows[first : first + size] for first in missing[ranks.rank :: ranks.num_ranks]]
    found = _run(inputs, manifest, network, device, np.concatenate([rows[:0], *own]))
    with StopSignal() as stop:
        for at in track(
            range(ranks.rank, len(missing) + ranks.rank, ranks.num_ranks),
            "features",
            console=Console(stderr=True),
            disable=not ranks.is_main,
        ):
            for first in missing[at : at + 1]:  # in the last turn some ranks have none
                write_bytes(files[first], np.concatenate([*islice(found, PART_BATCHES)]).tobytes())
            (code,) = ranks.maxima([stop.exit_code])  # so that no rank waits for another for long
            if code:
                raise Stopped(int(code))
    values = np.empty((len(rows), network.num_features), np.float16)
    for first, file in files.items():
        values[first : first + size] = np.fromfile(file, np.float16).reshape(-1, network.num_features)
    position = np.full(len(manifest) + len(added), -1)
    position[rows] = np.arange(len(rows))
    return Features(values, np.concatenate([manifest.labels[rows[rows >= 0]], added]), position)


def _run(
    inputs: RunInput, manifest: Manifest, network: PlantNetwork, device: torch.device, rows: Ints
) -> Iterator[np.ndarray]:
    """Yields the features of pictures as the service sees them, a batch at a time."""
    network.eval().to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    allow_tf32(device, inputs.recipe.hardware.tf32)
    normalize = Normalizer(inputs.spec, device)
    dtype = amp_dtype(inputs.recipe.hardware, device)
    loader = still_loader(
        manifest,
        rows,
        inputs.spec,
        inputs.recipe.data.workers,
        added=inputs.others,
        batch_size=BATCH,
        pin=device.type == "cuda",
    )
    with torch.inference_mode(), torch.amp.autocast(device.type, dtype, enabled=dtype is not None):
        for pixels, _ in loader:
            found = network.features(normalize(pixels.to(device, non_blocking=True))).half().cpu().numpy()
            if not np.isfinite(found).all():
                raise DataError(
                    "the features of the network are too large for float16",
                    value=inputs.recipe.network.architecture,
                    remedy="take --amp bf16 or off, or train without --frozen-stages all",
                )
            yield found


def _key(inputs: RunInput, manifest: Manifest, network: PlantNetwork, device: torch.device) -> str:
    """Returns the hash of all that the features of plants depend on: manifest, preprocessing, weights and precision."""
    dtype = str(amp_dtype(inputs.recipe.hardware, device))
    told = (BATCH * PART_BATCHES, manifest.sha256, inputs.spec, network.architecture, dtype)
    digest = hashlib.sha256(msgspec.json.encode(told))
    head = {parameter.data_ptr() for parameter in network.head_parameters()}
    for name, value in network.state_dict().items():
        if value.data_ptr() not in head:
            digest.update(name.encode())
            digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()
