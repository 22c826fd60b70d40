"""Where a network's first weights come from: the hub, a file, or chance."""

from pathlib import Path
from typing import Any

import msgspec
import timm
from torch import Tensor

from models.errors import CheckpointError
from models.network import PlantNetwork
from training.checkpoint import load_tensors


class LoadedWeights(msgspec.Struct, frozen=True):
    """What a network started from."""

    origin: str
    """"imagenet", "none" or the file."""
    fresh_head: bool
    """Whether the classifier starts from random weights."""
    note: str
    """A sentence for the log."""


def load_weights(network: PlantNetwork, weights: str) -> LoadedWeights:
    """Gives a network its first weights.

    Args:
        network: Filled in place.
        weights: "imagenet", "none", or a file: a checkpoint of this project, a state dict of torch, or safetensors.

    Returns:
        What was loaded. A file of another number of classes fills the backbone and leaves the classifier fresh.

    Raises:
        CheckpointError: The hub cannot be reached, or the file is missing, damaged or of another network.
    """
    if weights == "none":
        return LoadedWeights("none", True, "all weights start at random")
    state = _from_hub(network) if weights == "imagenet" else _from_file(Path(weights))
    fresh_head = _fill(network, state, weights)
    note = f"weights from {weights}" + ("; the classifier starts at random" if fresh_head else "")
    return LoadedWeights(weights, fresh_head, note)


def _from_hub(network: PlantNetwork) -> dict[str, Tensor]:
    try:
        pretrained = timm.create_model(network.architecture, pretrained=True)
    except Exception as error:  # the hub's client raises its own and httpx's errors, timm RuntimeError
        raise CheckpointError(
            "the pretrained weights cannot be fetched from the hub",
            value=f"{type(error).__name__} for {network.architecture}",
            remedy="give a local file with --weights FILE, or start at random with --weights none",
        ) from error
    return _prefixed(pretrained.state_dict())


def _from_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return _prefixed(_read_safetensors(path))
    content = load_tensors(path)
    if isinstance(content, dict) and "network" in content:  # our own checkpoint
        return dict(content.get("ema") or content["network"])
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):  # timm's and Lightning's wrapping
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError("the file holds no state dict", value=path, remedy="save the network's state_dict()")
    return _prefixed(content)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise CheckpointError("no such weights file", value=path, remedy="correct the path")
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged", value=error, remedy="fetch the file again") from error


def _prefixed(state: dict[str, Any]) -> dict[str, Tensor]:
    """timm's names live under `timm_model.` in our network."""
    return {name if name.startswith("timm_model.") else f"timm_model.{name}": value for name, value in state.items()}


def _fill(network: PlantNetwork, state: dict[str, Tensor], origin: str) -> bool:
    """Copies a state dict into the network; returns whether the classifier had to stay as it was."""
    own = network.state_dict()
    head = {name for name in own if own[name].data_ptr() in {p.data_ptr() for p in network.head.parameters()}}
    misfits = {name for name in head if name not in state or state[name].shape != own[name].shape}
    kept = {name: value for name, value in state.items() if name not in misfits}
    wrong = [name for name in own if name not in misfits and (name not in kept or kept[name].shape != own[name].shape)]
    if wrong:
        raise CheckpointError(
            f"the weights {origin} are of another network",
            value=f"{len(wrong)} tensors do not fit, first {wrong[0]}",
            limit=network.architecture,
            remedy="choose the architecture that they were saved from",
        )
    network.load_state_dict({name: value for name, value in kept.items() if name in own}, strict=False)
    return bool(misfits)
