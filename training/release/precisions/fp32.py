"""fp32: a checkpoint -> the network file that all others are made from and held against."""

from pathlib import Path

import torch

from models.network import PlantNetwork
from training.engine.checkpoint import Checkpoint
from training.evaluation.predict import Logits, predict, torch_runner
from training.loading.data import evaluation_loader
from training.recipe import DataRecipe
from training.release.onnx_file import fold_batch_norm, round_to_half, write_onnx
from training.release.precisions.pictures import Pictures


def write_single(
    checkpoint: Checkpoint, validation: Pictures, target: Path, *, half_storage: bool
) -> tuple[Logits, Logits]:
    """Writes the network file, and runs PyTorch on every validation picture to hold it against.

    Args:
        checkpoint: Whose judged weights are written.
        validation: Gives the input, the names and the pictures.
        target: The file to write.
        half_storage: Store the weights in half precision.

    Returns:
        PyTorch's logits with the checkpoint's weights, and with those that the file holds; the same without half
        storage.
    """
    network = PlantNetwork(checkpoint.architecture, len(checkpoint.output_keys))
    network.load_state_dict(checkpoint.eval_weights)
    network.eval()
    fold_batch_norm(network, validation.spec)
    exact = _torch_logits(network, validation)
    if half_storage:
        round_to_half(network)
    same_weights = _torch_logits(network, validation) if half_storage else exact
    write_onnx(network, validation.spec, validation.manifest.taxonomy, target, half_storage=half_storage)
    return exact, same_weights


def _torch_logits(network: PlantNetwork, pictures: Pictures) -> Logits:
    loader = evaluation_loader(pictures.manifest, pictures.rows, pictures.spec, DataRecipe(workers=pictures.workers))
    return predict(loader, torch_runner(network, torch.device("cpu")))[0]
