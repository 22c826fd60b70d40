"""fp32: writes a checkpoint to the network file from which the other precisions are made."""

from pathlib import Path

import torch

from models.network import PlantNetwork
from training.bundling.onnx_file import fold_batch_norm, round_to_half, write_onnx
from training.bundling.precisions.pictures import Pictures
from training.engine.checkpoint import Checkpoint
from training.evaluation.predict import Logits, predict, torch_runner
from training.loading.data import evaluation_loader
from training.recipe import DataRecipe


def write_fp32(
    checkpoint: Checkpoint, pictures: Pictures, target: Path, *, half_storage: bool
) -> tuple[Logits, Logits]:
    """Writes the network file, and runs PyTorch on some pictures for comparison.

    Args:
        checkpoint: Gives the weights: the moving average if it has one.
        pictures: The pictures, which also give the input and the taxonomy.
        target: The file to write.
        half_storage: Store the weights in half precision.

    Returns:
        PyTorch's logits with the weights of the checkpoint, and with the weights of the file. Without half storage they
        are the same.
    """
    network = PlantNetwork(checkpoint.architecture, len(checkpoint.output_keys))
    network.load_state_dict(checkpoint.eval_weights)
    network.eval()
    network.fix_size(pictures.spec.height, pictures.spec.width)
    fold_batch_norm(network, pictures.spec)
    exact = _torch_logits(network, pictures)
    if half_storage:
        round_to_half(network)
    same_weights = _torch_logits(network, pictures) if half_storage else exact
    write_onnx(network, pictures.spec, pictures.manifest.taxonomy, target, half_storage=half_storage)
    return exact, same_weights


def _torch_logits(network: PlantNetwork, pictures: Pictures) -> Logits:
    loader = evaluation_loader(pictures.manifest, pictures.rows, pictures.spec, DataRecipe(workers=pictures.workers))
    return predict(loader, torch_runner(network, torch.device("cpu")))[0]
