import pytest
import torch
from msgspec.structs import replace

from benchmarks.gpu.small_weights import SmallWeights, write_small_weights
from models.network import PlantNetwork
from tests.training.engine.test_checkpoint import TINY
from training.engine.checkpoint import write_checkpoint
from training.engine.weights import load_weights


def network(num_outputs, seed):
    torch.manual_seed(seed)
    found = PlantNetwork("test_efficientnet", num_outputs)
    for name, value in found.state_dict().items():
        if name.endswith("running_var"):
            value.copy_(torch.rand_like(value) * 1e-7)  # half precision knows nothing as small
    return found


@pytest.fixture
def weights(tmp_path):
    """The file that the program makes of a checkpoint."""
    path = tmp_path / "best.pt"
    first, averaged = (network(3, seed).state_dict() for seed in (1, 2))
    write_checkpoint(path, replace(TINY, network=first, ema=averaged, output_keys=["drawn:a", "drawn:b", "drawn:c"]))
    out = tmp_path / "weights.safetensors"
    write_small_weights(SmallWeights(checkpoint=path, out=out))
    return out


def test_other_classes_start_from_the_judged_weights(weights):
    judged, other = network(3, 2), network(7, 3)
    fresh = other.head.get_parameter("weight").clone()
    note = load_weights(other, str(weights), [f"other:{number}" for number in range(7)])
    assert "the classifier starts at random" in note
    assert torch.equal(other.head.get_parameter("weight"), fresh)
    ours, theirs = other.state_dict(), judged.state_dict()
    for name in ours.keys() - {"timm_model.classifier.weight", "timm_model.classifier.bias"}:
        off = 0.0 if ours[name].ndim < 2 else 1e-3
        torch.testing.assert_close(ours[name], theirs[name], rtol=off, atol=off / 1000, msg=name)


def test_the_file_is_half_as_large_as_the_weights(weights):
    whole = sum(value.numel() * value.element_size() for value in network(3, 2).state_dict().values())
    assert weights.stat().st_size < 0.65 * whole
