import torch
from msgspec.structs import replace

from benchmarks.gpu.small_checkpoint import SmallCheckpoint, write_small_checkpoint
from models.network import PlantNetwork
from tests.training.engine.test_checkpoint import TINY
from training.engine.checkpoint import read_checkpoint, write_checkpoint


def network(seed):
    torch.manual_seed(seed)
    found = PlantNetwork("test_efficientnet", 3)
    for name, value in found.state_dict().items():
        if name.endswith("running_var"):
            value.copy_(torch.rand_like(value) * 1e-7)  # half precision knows nothing as small
    return found


def test_a_small_checkpoint_has_the_judged_network_in_a_quarter_of_its_bytes(tmp_path):
    judged = network(2).state_dict()
    large = replace(TINY, network=network(1).state_dict(), ema=judged, output_keys=["drawn:a", "drawn:b", "drawn:c"])
    write_checkpoint(tmp_path / "best.pt", large)
    write_small_checkpoint(SmallCheckpoint(checkpoint=tmp_path / "best.pt", out=tmp_path / "small.pt"))
    small = read_checkpoint(tmp_path / "small.pt")
    assert (small.output_keys, small.recipe, small.ema) == (large.output_keys, TINY.recipe, None)
    for name, value in small.trained_network().state_dict().items():
        off = {"rtol": 1e-3, "atol": 1e-6} if value.ndim > 1 else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(value, judged[name], **off, msg=name)
    assert (tmp_path / "small.pt").stat().st_size < 0.3 * (tmp_path / "best.pt").stat().st_size
