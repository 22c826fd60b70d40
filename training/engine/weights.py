"""Where a network's first weights come from: the hub, a file, or chance."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Final

import msgspec
import timm
from huggingface_hub import constants as hub
from huggingface_hub import get_session
from torch import Tensor

from models.errors import CheckpointError
from models.network import PlantNetwork
from training.engine.checkpoint import DamagedCheckpoint, load_tensors

_HUB_PATIENCE_S: Final = 5.0


class LoadedWeights(msgspec.Struct, frozen=True):
    """What a network started from."""

    origin: str
    """"imagenet", "none" or the file."""
    fresh_head: bool
    """Whether the classifier, or some of its rows, starts from random weights."""
    note: str
    """A sentence for the log."""


class _Saved(msgspec.Struct, frozen=True):
    """What a file or the hub holds."""

    state: dict[str, Tensor]
    """Weights under the names of our network."""
    output_keys: Sequence[str] | None = None
    """What each row of the classifier means, where the file says so."""


def load_weights(network: PlantNetwork, weights: str, output_keys: Sequence[str] | None = None) -> LoadedWeights:
    """Gives a network its first weights.

    Args:
        network: Filled in place.
        weights: "imagenet", "none", or a file: a checkpoint of this project, a state dict of torch, or safetensors.
        output_keys: What each row of the network's classifier means. With them, a checkpoint of this project gives its
            classifier row by row to the outputs of the same key, so that a network can grow or its outputs move.

    Returns:
        What was loaded. Rows that the file does not name start at random; of a file that names none, the whole
        classifier does if it has another number of classes.

    Raises:
        CheckpointError: The hub cannot be reached, or the file is missing, damaged or of another network.
    """
    if weights == "none":
        return LoadedWeights("none", True, "all weights start at random")
    saved = _from_hub(network) if weights == "imagenet" else _from_file(Path(weights))
    if output_keys is not None and saved.output_keys is not None and list(output_keys) != list(saved.output_keys):
        return _fill_by_key(network, saved.state, output_keys, saved.output_keys, weights)
    fresh_head = _fill(network, saved.state, weights)
    note = f"weights from {weights}" + ("; the classifier starts at random" if fresh_head else "")
    return LoadedWeights(weights, fresh_head, note)


def _from_hub(network: PlantNetwork) -> _Saved:
    try:
        with _hub_or_cache():
            pretrained = timm.create_model(network.architecture, pretrained=True)
    except Exception as error:  # the hub's client raises its own and httpx's errors, timm RuntimeError
        raise CheckpointError(
            "the pretrained weights cannot be fetched from the hub",
            value=f"{type(error).__name__} for {network.architecture}",
            remedy="give a local file with --weights FILE, or start at random with --weights none",
        ) from error
    return _Saved(_prefixed(pretrained.state_dict()))


@contextmanager
def _hub_or_cache() -> Iterator[None]:
    """Lets the hub's client look in its cache alone where the hub does not answer.

    The client would try each file six times and wait in between: 47 seconds without a connection.
    """
    offline = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = offline or not _hub_answers()
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = offline


def _hub_answers() -> bool:
    """Whether the hub, or the mirror that HF_ENDPOINT names, answers at all; through a proxy where one is set."""
    answers: list[int] = []

    def ask() -> None:
        try:
            answers.append(get_session().head(hub.ENDPOINT, timeout=_HUB_PATIENCE_S).status_code)
        except Exception:  # the client's errors, by its version, are those of requests or of httpx
            return

    asking = Thread(target=ask, daemon=True)  # the search for a name is not held to the timeout
    asking.start()
    asking.join(_HUB_PATIENCE_S)
    return bool(answers) and answers[0] < 500


def _from_file(path: Path) -> _Saved:
    if path.suffix == ".safetensors":
        return _Saved(_prefixed(_read_safetensors(path)))
    content = load_tensors(path)
    if isinstance(content, dict) and "network" in content:  # our own checkpoint
        return _Saved(dict(content.get("ema") or content["network"]), content.get("output_keys"))
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):  # timm's and Lightning's wrapping
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError("the file holds no state dict", value=path, remedy="save the network's state_dict()")
    return _Saved(_prefixed(content))


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


def _fill_by_key(
    network: PlantNetwork, state: dict[str, Tensor], keys: Sequence[str], saved_keys: Sequence[str], origin: str
) -> LoadedWeights:
    """Copies the backbone, and of the classifier each row to the output of the same key."""
    saved_row = {key: row for row, key in enumerate(saved_keys)}
    rows = [row for row, key in enumerate(keys) if key in saved_row]
    saved_rows = [saved_row[keys[row]] for row in rows]
    own, merged = network.state_dict(), dict(state)
    for name in _head_names(network) & state.keys():
        if len(state[name]) != len(saved_keys):
            raise DamagedCheckpoint(
                f"the checkpoint {origin} names another number of outputs than its classifier has",
                value=f"{len(saved_keys)} names for {len(state[name])} rows",
                remedy="use another one",
            )
        if state[name].shape[1:] == own[name].shape[1:]:
            merged[name] = own[name].clone()
            merged[name][rows] = state[name][saved_rows].to(merged[name])
    _fill(network, merged, origin)
    fresh = len(rows) < len(keys)
    copied = f"weights from {origin}; {len(rows):,} of {len(keys):,} rows of the classifier by their key"
    return LoadedWeights(origin, fresh, copied + ("; the rest starts at random" if fresh else ""))


def _fill(network: PlantNetwork, state: dict[str, Tensor], origin: str) -> bool:
    """Copies a state dict into the network; returns whether the classifier had to stay as it was."""
    own = network.state_dict()
    misfits = {name for name in _head_names(network) if name not in state or state[name].shape != own[name].shape}
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


def _head_names(network: PlantNetwork) -> set[str]:
    """Names of the classifier's tensors in the network's state."""
    head = {parameter.data_ptr() for parameter in network.head.parameters()}
    return {name for name, value in network.state_dict().items() if value.data_ptr() in head}
