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


def test_frozen_norms_stay_as_they_are_while_the_rest_learns():
    network = make_network()
    names = list(network.state_dict())
    network.train()
    freeze_norms(network)
    assert list(network.state_dict()) == names
    before = weights_of(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    for step in range(2):
        network(make_pictures(seed=step)).square().sum().backward()
        optimizer.step()
    prefixes = [name for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)]
    of_norms = {name for name in names if name.rpartition(".")[0] in prefixes}
    assert len(of_norms) == 5 * len(prefixes)
    assert {name for name, value in network.state_dict().items() if torch.equal(value, before[name])} == of_norms
    assert network.training
    assert network.timm_model.blocks.training


def test_every_norm_of_a_network_with_frozen_norms_evaluates_while_it_trains():
    recipe = Recipe(schedule=ScheduleRecipe(batch_size=4))
    engine = Engine(RunInput.of(recipe), make_network(), CPU, CLASSES, steps_per_epoch=10)
    assert engine.norms.kind == "frozen"
    engine.network.eval()
    engine.train_mode()
    assert engine.network.timm_model.blocks.training
    assert not any(norm.training for norm in norms_of(engine.network))


def engine_with_frozen_stages(count, weights="imagenet"):
    recipe = Recipe(network=NetworkRecipe(frozen_stages=count, weights=weights), schedule=ScheduleRecipe(batch_size=16))
    return Engine(RunInput.of(recipe), make_network(), CPU, CLASSES, steps_per_epoch=1)


def test_frozen_stages_keep_weights_and_statistics_while_the_others_learn():
    engine = engine_with_frozen_stages(2)
    before = weights_of(engine.network)
    for step in range(2):  # the rate of the first step is that of the recipe, of the second nearly 0
        pixels = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
        engine.micro_step(pixels, torch.arange(16) % 3, step=step)
        engine.network.eval()
        engine.train_mode()  # as after a validation
    changed = {name for name, value in engine.network.state_dict().items() if not torch.equal(value, before[name])}
    frozen = ("timm_model.conv_stem.", "timm_model.bn1.", "timm_model.blocks.0.")
    learned = {name for name in before if not name.startswith(frozen)}
    assert not {name for name in changed if name.startswith(frozen)}
    assert changed == learned


def test_stages_that_a_network_lacks_or_that_would_stay_random_are_refused():
    with pytest.raises(RecipeError, match=r"frozen_stages = 99; expected at most \d+ in test_efficientnet"):
        engine_with_frozen_stages(99)
    with pytest.raises(RecipeError, match=r"random weights cannot be frozen.*--weights imagenet"):
        engine_with_frozen_stages(1, weights="none")


def population(seen):
    """Mean and unbiased variance of each channel over all pictures together."""
    flat = torch.cat(seen).double().transpose(0, 1).flatten(1)
    return flat.mean(1).float(), flat.var(1).float()


def test_reestimation_gives_the_statistics_of_all_pictures_together():
    network = make_network()
    network.eval()
    batches = [(seed + 1) * make_pictures(size, seed) + seed for seed, size in enumerate((8, 8, 5))]
    seen = {norm: [] for norm in norms_of(network)}
    hooks = [
        norm.register_forward_pre_hook(lambda module, inputs: seen[module].append(inputs[0].clone())) for norm in seen
    ]
    reestimate(network, iter(batches))
    for hook in hooks:
        hook.remove()
    for norm, inputs in seen.items():
        mean, var = population(inputs)
        assert torch.allclose(norm.running_mean, mean, rtol=1e-4, atol=1e-5)
        assert torch.allclose(norm.running_var, var, rtol=1e-4)


def test_dropout_is_off_while_statistics_are_reestimated():
    network = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(3))
    pictures = make_pictures()
    reestimate(network, [pictures])
    mean, var = population([pictures])
    assert torch.allclose(network[1].running_mean, mean, atol=1e-5)
    assert torch.allclose(network[1].running_var, var, rtol=1e-4)


def test_reestimation_changes_nothing_else():
    network = make_network()
    network.train()
    freeze_norms(network)
    before, modes = weights_of(network), [module.training for module in network.modules()]
    reestimate(network, [make_pictures()])
    changed = {
        name.rpartition(".")[2] for name, now in network.state_dict().items() if not torch.equal(now, before[name])
    }
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
