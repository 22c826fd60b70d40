"""Writes the weights from which another training can start: the part `weights` of a bundle."""

from pathlib import Path

from safetensors.torch import save_file

from models.network import timm_names
from training.engine.checkpoint import Checkpoint


def write_weights(path: Path, checkpoint: Checkpoint) -> None:
    """Writes the weights that are exported, in full precision, to a safetensors file under timm's names."""
    weights = timm_names(checkpoint.eval_weights)
    save_file({name: value.contiguous() for name, value in weights.items()}, path, {"format": "pt"})
