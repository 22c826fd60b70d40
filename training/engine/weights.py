"""What a network starts with: weights from the hub, from a file or random, and how BatchNorm computes its statistics.

Gradient accumulation does not change these statistics: only the micro-batch counts.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final, Literal

import msgspec
import timm
from huggingface_hub import constants as hub
from huggingface_hub import get_session, hf_hub_url
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models.bundle import load_bundle
from models.errors import CheckpointError, RecipeError
from models.network import TIMM_MODEL, PlantNetwork, timm_names
from training.engine.checkpoint import DamagedCheckpoint, load_tensors
from training.recipe import Recipe

_HUB_TIMEOUT_S: Final = 5.0
_HUB_FILE: Final = "model.safetensors"  # the name of timm's weights in each of its repositories
_STATES: Final = ("state_dict_ema", "state_dict", "model", "model_state_dict")
"""Where timm, Lightning, torchvision and PyTorch's tutorials keep weights in what they save, a moving average first."""
_PREFIXES: Final = ("module.", "_orig_mod.", "model.", "net.", "backbone.")
SUFFICIENT_BATCH: Final = 16
"""From this batch size on, BatchNorm is not changed: below it, the error grows fast (Wu and He 2018, figure 1)."""
SMALL_BATCH: Final = 8
"""Below this batch size, pretrained statistics are kept: new ones at 4 cost several points (same figure)."""
_PER_BATCH: Final = "BatchNorm uses the statistics of each batch"


def new_network(recipe: Recipe, num_outputs: int) -> PlantNetwork:
    """A network with random weights."""
    dropout = recipe.network.dropout
    return PlantNetwork(recipe.network.architecture, num_outputs, dropout=dropout, drop_path=dropout / 2)


class _Saved(msgspec.Struct, frozen=True):
    """Weights from a file or the hub."""

    state: dict[str, Tensor]
    """By the tensor names of PlantNetwork."""
    output_keys: Sequence[str] | None = None
    name: str = ""
    """What they are, in words; empty for a file, whose path is its name."""
    architecture: str = ""
    """Empty if nothing tells it."""


def load_weights(network: PlantNetwork, weights: str, output_keys: Sequence[str] | None = None) -> str:
    """Gives a network its initial weights; returns a sentence about what was loaded.

    `weights` is "imagenet", "none", or a path: a bundle with weights, a checkpoint of this project, a state dict of
    torch, or safetensors. With `output_keys`, the classifier rows of a checkpoint or bundle are copied by key, so that
    outputs can be added or reordered; a plant of which the file has no output stays random. The whole classifier stays
    random if the file has no keys and another number of outputs.

    Raises:
        CheckpointError: The hub cannot be reached, or the file is missing, damaged or of another network.
        BundleError: The folder is no bundle, is damaged, or has no weights.
    """
    if weights == "none":
        return "all weights start at random"
    saved = _from_hub(network) if weights == "imagenet" else _from_file(Path(weights), network)
    name = saved.name or weights
    if output_keys is not None and saved.output_keys is not None and list(output_keys) != list(saved.output_keys):
        return _fill_by_key(network, saved, output_keys, saved.output_keys, name)
    has_classifier = _fill(network, saved, weights)
    return f"weights from {name}" if has_classifier else f"weights from {name}; the classifier starts at random"


def _from_hub(network: PlantNetwork) -> _Saved:
    published = timm.get_pretrained_cfg(network.architecture)
    offline = hub.HF_HUB_OFFLINE
    try:
        # The client tries each file six times, which takes 47 seconds without a connection: then it has its cache only.
        hub.HF_HUB_OFFLINE = offline or not _hub_answers()
        pretrained = timm.create_model(network.architecture, pretrained=True)
    except Exception as error:  # from the hub's client or httpx2, or a RuntimeError from timm
        by_hand = "pass a local file with --weights FILE"
        if published is not None and published.hf_hub_id:
            address = hf_hub_url(published.hf_hub_id, published.hf_hub_filename or _HUB_FILE)
            by_hand = f"fetch {address} where the hub can be reached, and pass --weights {Path(address).name}"
        raise CheckpointError(
            "the pretrained weights cannot be fetched from the hub",
            value=f"{type(error).__name__} for {network.architecture}",
            remedy=f"{by_hand}, or train from random weights with --weights none",
        ) from error
    finally:
        hub.HF_HUB_OFFLINE = offline
    tag = f".{published.tag}" if published is not None and "." not in network.architecture else ""
    return _Saved(_prefixed(pretrained.state_dict()), name=f"timm's hub, {network.architecture}{tag}")


def _hub_answers() -> bool:
    """Whether the hub, or the mirror in HF_ENDPOINT, answers; through the proxy if one is set."""
    answers: list[int] = []

    def ask() -> None:
        with suppress(Exception):  # from requests or httpx2, depending on the client's version
            answers.append(get_session().head(hub.ENDPOINT, timeout=_HUB_TIMEOUT_S).status_code)

    asking = Thread(target=ask, daemon=True)  # the timeout does not cover name resolution
    asking.start()
    asking.join(_HUB_TIMEOUT_S)
    return bool(answers) and answers[0] < 500


def _from_file(path: Path, network: PlantNetwork) -> _Saved:
    if path.is_dir():
        bundle = load_bundle(path)
        state = _read_safetensors(bundle.weights_path())
        name = f"bundle {bundle.record.name} {bundle.record.version}"
        return _Saved(_prefixed(state), bundle.taxonomy.output_keys, name, bundle.record.architecture.name)
    content: Any = _read_safetensors(path) if path.suffix == ".safetensors" else load_tensors(path)
    if isinstance(content, dict) and isinstance(content.get("network"), dict):  # our own checkpoint
        state = dict(content.get("ema") or content["network"])
        return _Saved(state, content.get("output_keys"), architecture=content.get("architecture", ""))
    name = ""
    if keys := [key for key in _STATES if isinstance(content, dict) and isinstance(content.get(key), dict)]:
        content = content[keys[0]]
        name = f"{path}, {keys[0]}"
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError("the file holds no state dict", value=path, remedy="save the network's state_dict()")
    return _Saved(_translated(_without_prefixes(content, network), network), name=name)


def _without_prefixes(state: dict[str, Any], network: PlantNetwork) -> dict[str, Any]:
    """Takes off what trainers and compilers put before the names, where that makes them those of the network."""
    own = network.timm_model.state_dict().keys()
    found = state
    while not own & timm_names(found).keys():
        prefix = next((each for each in _PREFIXES if any(name.startswith(each) for name in found)), None)
        if prefix is None:
            return state
        found = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    return found


def _translated(state: dict[str, Any], network: PlantNetwork) -> dict[str, Tensor]:
    """Gives weights of other programs, such as OpenCLIP, the names of PlantNetwork, as timm does for its own hub.

    Their projection is no classifier of plants, so it is left out.
    """
    translate = getattr(sys.modules[type(network.timm_model).__module__], "checkpoint_filter_fn", None)
    if translate is None or network.state_dict().keys() - _head_names(network) <= _prefixed(state).keys():
        return _prefixed(state)
    with suppress(AttributeError, KeyError, RuntimeError):  # of a network that is none of this family
        state = translate(state, network.timm_model)
    return {name: value for name, value in _prefixed(state).items() if name not in _head_names(network)}


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
    """Gives weights under timm's names, or under those of PlantNetwork, the latter."""
    return {f"{TIMM_MODEL}.{name}": value for name, value in timm_names(state).items()}


def _fill_by_key(
    network: PlantNetwork, saved: _Saved, keys: Sequence[str], saved_keys: Sequence[str], origin: str
) -> str:
    """Copies the backbone, and each classifier row to the output of the same key, else of the same plant."""
    saved_row = {key.rpartition(":")[2]: row for row, key in enumerate(saved_keys)}
    saved_row |= {key: row for row, key in enumerate(saved_keys)}
    found = [saved_row.get(key, saved_row.get(key.rpartition(":")[2])) for key in keys]
    rows = [row for row, at in enumerate(found) if at is not None]
    saved_rows = [at for at in found if at is not None]
    own = network.state_dict()
    state = saved.state
    merged = dict(state)
    for name in _head_names(network) & state.keys():
        if len(state[name]) != len(saved_keys):
            raise DamagedCheckpoint(
                f"in the checkpoint {origin} the number of output keys differs from the number of classifier rows",
                value=f"{len(saved_keys)} keys for {len(state[name])} rows",
                remedy="use another one",
            )
        if state[name].shape[1:] == own[name].shape[1:]:
            merged[name] = own[name].clone()
            merged[name][rows] = state[name][saved_rows].to(merged[name])
    _fill(network, msgspec.structs.replace(saved, state=merged), origin)
    note = f"weights from {origin}; {len(rows):,} of {len(keys):,} rows of the classifier matched by key"
    return note if len(rows) == len(keys) else f"{note}; the rest starts at random"


def _fill(network: PlantNetwork, saved: _Saved, origin: str) -> bool:
    """Copies weights into the network; returns whether they had a classifier of the right shape."""
    own = network.state_dict()
    state = saved.state
    fitting = {name for name, value in own.items() if name in state and state[name].shape == value.shape}
    misfits = _head_names(network) - fitting
    wrong = [name for name in own if name not in fitting | misfits]
    if wrong:
        raise CheckpointError(
            f"the weights in {origin} are of another network",
            value=f"{len(wrong)} tensors are missing or have another shape, first {wrong[0]}",
            limit=network.architecture,
            remedy=f"pass --architecture {saved.architecture or 'NAME, that which they were saved from'}",
        )
    network.load_state_dict({name: state[name] for name in fitting}, strict=False)
    return not misfits


def _head_names(network: PlantNetwork) -> set[str]:
    """Names of the classifier's tensors in the state dict."""
    head = {parameter.data_ptr() for parameter in network.head.parameters()}
    return {name for name, value in network.state_dict().items() if value.data_ptr() in head}


class NormChoice(msgspec.Struct, frozen=True):
    """How BatchNorm computes its statistics in a run."""

    kind: Literal["leave", "frozen"]
    reestimate: bool
    """Whether running statistics are re-estimated before each validation, see `reestimate`."""
    explanation: str
    """What was chosen, and why."""


def choose_norms(network: nn.Module, recipe: Recipe) -> NormChoice:
    """Chooses how BatchNorm computes its statistics; "auto" chooses by the batch size of a rank.

    Raises:
        RecipeError: The recipe asks for frozen norms of random weights.
    """
    norms = recipe.network.norms
    is_random = recipe.network.weights == "none"
    if not batch_norms(network):  # such as a ViT
        return NormChoice("leave", False, "the network has no BatchNorm, so --norms changes nothing")
    if norms == "frozen" and is_random:
        raise RecipeError(
            "BatchNorm cannot be frozen, since random weights have no statistics",
            value="norms = frozen with weights = none",
            remedy="use --weights imagenet or a file, or another --norms",
        )
    if norms == "frozen" or recipe.network.frozen_stages:
        return NormChoice("frozen", False, "BatchNorm keeps its pretrained statistics, as requested")
    if norms == "leave":
        return NormChoice("leave", False, f"{_PER_BATCH}, as requested")
    size = recipe.schedule.batch_size
    pictures, verb = (f"{size} pictures per batch", "are") if size > 1 else ("1 picture per batch", "is")
    if size >= SUFFICIENT_BATCH:
        return NormChoice("leave", False, f"{_PER_BATCH}: {pictures} are enough")
    limit = SMALL_BATCH if size < SMALL_BATCH else SUFFICIENT_BATCH
    reason = f"{pictures} {verb} too few to estimate them (under {limit})"
    if size < SMALL_BATCH and not is_random:
        return NormChoice("frozen", False, f"BatchNorm keeps its pretrained statistics: {reason}")
    # No statistics over all ranks: PyTorch's synchronized norms make the host wait for the device in each norm.
    explanation = f"BatchNorm's statistics are re-estimated before each validation: {reason}"
    if size < SMALL_BATCH:
        explanation += f"; random weights train better with a --batch-size of {SMALL_BATCH} or more"
    return NormChoice("leave", True, explanation)


def freeze_norms(network: nn.Module) -> None:
    """Freezes the statistics, scales and shifts of every BatchNorm; call it after each `network.train()`.

    `timm.layers.freeze_batch_norm_2d` replaces the modules, which changes their names in checkpoints.
    """
    for norm in batch_norms(network):
        for parameter in norm.parameters(recurse=False):
            parameter.requires_grad_(False)
        norm.training = False  # not norm.eval(), which would switch off dropout inside timm's norms


def batch_norms(network: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm of a network."""
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]
