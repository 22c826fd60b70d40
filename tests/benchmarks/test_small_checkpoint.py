import torch
from msgspec.structs import replace

from benchmarks.gpu.small_checkpoint import SmallCheckpoint, write_small_checkpoint
from models.network import PlantNetwork
from tests.training.engine.test_checkpoint import TINY
from training.engine.checkpoint import read_checkpoint, write_checkpoint
from training.engine.weights import load_weights

OFF = {False: {"rtol": 0, "atol": 0}, True: {"rtol": 1e-3, "atol": 1e-6}}


def network(seed):
    torch.manual_seed(seed)
    found = PlantNetwork("test_efficientnet", 3)
    for name, value in found.state_dict().items():
        if name.endswith("running_var"):
            value.copy_(torch.rand_like(value) * 1e-7)  # half precision knows nothing as small
    return found.eval()


def test_a_small_checkpoint_has_the_judged_network_in_half_of_its_bytes(tmp_path):
    judged, keys = network(2), ["drawn:a", "drawn:b", "drawn:c"]
    states = {"network": network(1).state_dict(), "ema": judged.state_dict()}
    write_checkpoint(tmp_path / "best.pt", replace(TINY, **states, output_keys=keys))
    write_small_checkpoint(SmallCheckpoint(checkpoint=tmp_path / "best.pt", out=tmp_path / "small.pt"))
    small = read_checkpoint(tmp_path / "small.pt")
    assert (small.output_keys, small.recipe, small.ema) == (keys, TINY.recipe, None)
    begun = network(3)
    load_weights(begun, str(tmp_path / "small.pt"), keys)
    for found in (small.trained_network(), begun):
        for name, value in found.state_dict().items():
            wanted = judged.state_dict()[name]
            torch.testing.assert_close(value, wanted, **OFF[wanted.ndim > 1], msg=name)
    assert (tmp_path / "small.pt").stat().st_size < 0.3 * (tmp_path / "best.pt").stat().st_size
