import pytest
import torch

from models.network import PlantNetwork
from tests.training.small import command
from training.engine.losses import training_classes
from training.insight.tuning.noise import NoiseMeter, NoiseScale, measure_noise, noise_sentence


def planted(batch_size, scale, groups=16, dimensions=2000):
    """Gradients of batches whose noise scale is known: true gradient of length 1, tr(S) = scale."""
    draws = torch.Generator().manual_seed(0)
    true = torch.zeros(dimensions)
    true[0] = 1.0
    meter = NoiseMeter(batch_size)
    for _ in range(groups * 8):
        noise = torch.randn(dimensions, generator=draws) * (scale / dimensions / batch_size) ** 0.5
        whole = true + noise
        meter.add([whole[:500].view(20, 25), whole[500:]])
    return meter.read()


@pytest.mark.parametrize("batch_size", [4, 16])
@pytest.mark.parametrize("scale", [20.0, 300.0])
def test_a_planted_noise_scale_is_found(batch_size, scale):
    noise = planted(batch_size, scale)
    assert noise.pictures == pytest.approx(scale, rel=0.2)
    assert noise.num_pictures == 16 * 8 * batch_size
    assert noise.error < 0.2


def test_a_gradient_that_noise_hides_has_no_scale():
    noise = NoiseMeter(4)
    for sign in (1.0, -1.0) * 16:
        noise.add([torch.tensor([sign])])
    assert noise.read().pictures is None


def test_the_sentence_says_which_side_of_the_scale_a_batch_is():
    noise = NoiseScale(40.0, 0.1, 512)
    assert "exceed" in noise_sentence(noise, 64)
    assert "below" in noise_sentence(noise, 32)
    assert "512" in noise_sentence(noise, 32)
    assert "not measured" in noise_sentence(None, 32)
    assert "hides" in noise_sentence(NoiseScale(None, None, 512), 32)


def test_it_is_measured_on_training_pictures_and_leaves_the_weights(data, manifest, tmp_path):
    recipe = command(data, tmp_path, "--batch-size", 4).recipe
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        network = PlantNetwork("test_efficientnet", 3, dropout=0.2)
        before = [parameter.detach().clone() for parameter in network.parameters()]
        classes, device = training_classes(manifest, recipe), torch.device("cpu")
        found.append(measure_noise(recipe, manifest, network, classes, device=device, budget_s=0.0))
        assert all(map(torch.equal, before, network.parameters()))
    assert found[0] == found[1]
    assert found[0].num_pictures == 2 * 8 * 2
    assert found[0].pictures is None or found[0].pictures > 0


def test_ghost_batches_are_measured_without_groups(data, manifest, tmp_path):
    recipe = command(data, tmp_path, "--batch-size", 4, "--norms", "ghost", "--ghost-size", 4).recipe
    network, classes = PlantNetwork("test_efficientnet", 3), training_classes(manifest, recipe)
    assert measure_noise(recipe, manifest, network, classes, device=torch.device("cpu"), budget_s=0.0) is not None


def test_data_smaller_than_a_batch_is_not_measured(data, manifest, tmp_path):
    recipe = command(data, tmp_path, "--batch-size", 16).recipe

    class Few:
        def rows_of(self, split):
            return manifest.rows_of(split)[:3]

    network = PlantNetwork("test_efficientnet", 3)
    classes = training_classes(manifest, recipe)
    assert measure_noise(recipe, Few(), network, classes, device=torch.device("cpu"), budget_s=0.0) is None
