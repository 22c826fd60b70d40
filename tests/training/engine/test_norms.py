import pytest
import torch
from torch import nn

from models.errors import RecipeError
from models.network import PlantNetwork
from tests.make import cases
from tests.training.engine.test_step import CLASSES, CPU
from tests.training.small import are_equal, weights_of
from training.engine.step import Engine
from training.engine.validation import reestimate
from training.engine.weights import choose_norms, freeze_norms
from training.loading.negatives import RunInput
from training.recipe import NetworkRecipe, Recipe, ScheduleRecipe


def choose(batch_size, norms="auto", weights="imagenet"):
    network = NetworkRecipe(norms=norms, weights=weights)
    recipe = Recipe(network=network, schedule=ScheduleRecipe(batch_size=batch_size))
    return choose_norms(nn.BatchNorm2d(3), recipe)


def make_network():
    torch.manual_seed(1)
    return PlantNetwork("test_efficientnet", 3)


def norms_of(network):
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def make_pictures(size=8, seed=0):
    return torch.randn(size, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("batch_size", "weights", "kind", "anew", "reason"), cases(__file__, "norms"))
def test_auto_chooses_by_the_pictures_of_a_step(batch_size, weights, kind, anew, reason):
    found = choose(batch_size, weights=weights)
    assert (found.kind, found.reestimate) == (kind, anew)
    assert found.explanation.startswith("BatchNorm")
    assert reason in found.explanation


@pytest.mark.parametrize("asked", ["leave", "frozen"])
def test_requested_norms_are_used_at_any_batch_size(asked):
    found = choose(4, asked)
    assert (found.kind, found.reestimate) == (asked, False)


def test_frozen_norms_of_random_weights_are_refused_with_a_remedy():
    with pytest.raises(RecipeError, match=r"random weights.*--weights imagenet"):
        choose(16, "frozen", weights="none")


def test_a_network_without_batchnorm_has_no_statistics_to_reestimate():
    recipe = Recipe(schedule=ScheduleRecipe(batch_size=8))
    engine = Engine(RunInput.of(recipe), PlantNetwork("test_vit", 3), CPU, CLASSES, steps_per_epoch=10)
    assert not engine.norms.reestimate
    assert "no BatchNorm" in engine.norms.explanation


def test_reestimation_gives_the_statistics_of_all_pictures_together_and_changes_nothing_else():
    network = make_network()
    network.train()
    freeze_norms(network)
    before, modes = weights_of(network), [module.training for module in network.modules()]
    batches = [(seed + 1) * make_pictures(size, seed) + seed for seed, size in enumerate((8, 8, 5))]
    seen, learning = {norm: [] for norm in norms_of(network)}, set()
    for norm in seen:
        norm.register_forward_pre_hook(lambda module, inputs: seen[module].append(inputs[0].clone()))
    network.register_forward_hook(lambda *_: learning.update(each for each in network.modules() if each.training))
    reestimate(network, iter(batches))
    assert learning == {*seen}  # nothing is dropped
    for norm, inputs in seen.items():
        flat = torch.cat(inputs).double().transpose(0, 1).flatten(1)  # of each channel over all pictures
        assert torch.allclose(norm.running_mean, flat.mean(1).float(), rtol=1e-4, atol=1e-5)
        assert torch.allclose(norm.running_var, flat.var(1).float(), rtol=1e-4)
    changed = {name.rpartition(".")[2] for name, now in network.state_dict().items() if not now.equal(before[name])}
    assert changed == {"running_mean", "running_var"}
    assert [module.training for module in network.modules()] == modes
    assert all(norm.track_running_stats for norm in norms_of(network))


def test_pictures_that_fail_leave_the_old_statistics():
    network = make_network()
    before = weights_of(network)

    def failing():
        yield make_pictures()
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        reestimate(network, failing())
    assert are_equal(before, network)
    assert all(norm.track_running_stats for norm in norms_of(network))
    reestimate(network, [])
    assert are_equal(before, network)
