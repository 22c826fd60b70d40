import copy

import pytest
import torch
from torch import nn

from models.errors import RecipeError
from models.network import PlantNetwork
from training.engine.losses import TrainingClasses
from training.engine.step import Engine
from training.engine.validation import reestimate
from training.engine.weights import choose_norms, freeze_norms, synchronized
from training.processes import clean_context
from training.recipe import NetworkRecipe, Recipe, ScheduleRecipe

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def choose(batch_size, norms="auto", num_ranks=1, device=CPU, weights="imagenet"):
    network = NetworkRecipe(norms=norms, weights=weights)
    recipe = Recipe(network=network, schedule=ScheduleRecipe(batch_size=batch_size))
    return choose_norms(nn.BatchNorm2d(3), recipe, num_ranks, device)


def make_network():
    torch.manual_seed(1)
    return PlantNetwork("test_efficientnet", 3)


def norms_of(network):
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def make_pictures(size=8, seed=0):
    return torch.randn(size, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


# Batch size, ranks, device, weights -> the choice, whether statistics are re-estimated, and part of the reason.
POLICY = [
    (16, 1, CPU, "imagenet", "leave", False, "enough"),
    (256, 8, CUDA, "none", "leave", False, "enough"),
    (15, 1, CUDA, "imagenet", "leave", True, "under 16"),
    (8, 2, CPU, "imagenet", "leave", True, "under 16"),
    (8, 2, CUDA, "imagenet", "leave", True, "under 16"),
    (7, 2, CUDA, "imagenet", "frozen", False, "7 pictures per batch are too few to estimate them (under 8)"),
    (4, 1, CPU, "imagenet", "frozen", False, "pretrained"),
    (4, 1, CPU, "runs/first/last.pt", "frozen", False, "pretrained"),
    (1, 1, CPU, "imagenet", "frozen", False, "1 picture per batch is too few"),
    (4, 1, CPU, "none", "leave", True, "--batch-size of 8 or more"),
    (4, 2, CUDA, "none", "leave", True, "under 8"),
]


@pytest.mark.parametrize(("batch_size", "num_ranks", "device", "weights", "kind", "anew", "reason"), POLICY)
def test_auto_chooses_by_the_pictures_of_a_step(batch_size, num_ranks, device, weights, kind, anew, reason):
    found = choose(batch_size, num_ranks=num_ranks, device=device, weights=weights)
    assert (found.kind, found.reestimate) == (kind, anew)
    assert found.explanation.startswith("BatchNorm")
    assert reason in found.explanation


@pytest.mark.parametrize(
    ("asked", "num_ranks", "device", "kind"),
    [
        ("leave", 1, CPU, "leave"),
        ("frozen", 1, CPU, "frozen"),
        ("sync", 2, CUDA, "sync"),
        ("sync", 1, CPU, "leave"),  # all ranks are this one
    ],
)
def test_requested_norms_are_used_at_any_batch_size(asked, num_ranks, device, kind):
    found = choose(4, asked, num_ranks, device)
    assert (found.kind, found.reestimate) == (kind, False)


@pytest.mark.parametrize(
    ("batch_size", "options", "message"),
    [
        (16, {"norms": "sync", "num_ranks": 2}, ["sync on cpu", "CUDA", "--norms auto"]),
        (16, {"norms": "frozen", "weights": "none"}, ["random weights", "--weights imagenet"]),
    ],
)
def test_impossible_norms_are_refused_with_a_remedy(batch_size, options, message):
    with pytest.raises(RecipeError) as caught:
        choose(batch_size, **options)
    assert all(words in str(caught.value) for words in message)


def test_a_network_without_batchnorm_has_no_statistics_to_reestimate():
    recipe = Recipe(schedule=ScheduleRecipe(batch_size=8))
    classes = TrainingClasses(taxon_of_output=(0, 1, 2), num_taxa=3, samples_of_output=(4.0, 4.0, 4.0))
    engine = Engine(recipe, PlantNetwork("test_vit", 3), CPU, classes, steps_per_epoch=10)
    assert not engine.norms.reestimate
    assert "no BatchNorm" in engine.norms.explanation


def test_frozen_norms_stay_as_they_are_while_the_rest_learns():
    network = make_network()
    names = list(network.state_dict())
    network.train()
    freeze_norms(network)
    assert list(network.state_dict()) == names
    before = copy.deepcopy(network.state_dict())
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
    before, modes = copy.deepcopy(network.state_dict()), [module.training for module in network.modules()]
    reestimate(network, [make_pictures()])
    changed = {
        name.rpartition(".")[2] for name, now in network.state_dict().items() if not torch.equal(now, before[name])
    }
    assert changed == {"running_mean", "running_var"}
    assert [module.training for module in network.modules()] == modes
    assert all(norm.track_running_stats for norm in norms_of(network))


def test_pictures_that_fail_leave_the_old_statistics():
    network = make_network()
    before = copy.deepcopy(network.state_dict())

    def failing():
        yield make_pictures()
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        reestimate(network, failing())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(norm.track_running_stats for norm in norms_of(network))
    reestimate(network, [])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_synchronized_norms_keep_the_activation_that_timm_fuses():
    plain, network = make_network(), synchronized(make_network())
    converted = [module for module in network.modules() if isinstance(module, nn.SyncBatchNorm)]
    assert [type(norm.act) for norm in converted] == [type(norm.act) for norm in norms_of(plain)]
    assert nn.SiLU in {type(norm.act) for norm in converted}
    assert list(network.state_dict()) == list(plain.state_dict())
    assert torch.equal(network.eval()(make_pictures()), plain.eval()(make_pictures()))


def train_as_rank(rank, folder):
    """One of two ranks, with half of the pictures; Gloo lets both share a GPU."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    network = synchronized(make_network()).cuda().train()
    network(make_pictures()[rank::2].cuda()).square().sum().backward()
    gradients = {name: parameter.grad.cpu() for name, parameter in network.named_parameters()}
    torch.save({"state": network.cpu().state_dict(), "gradients": gradients}, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.gpu
def test_two_ranks_with_synchronized_norms_are_one_with_all_pictures(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    context = clean_context("training.engine.weights")
    ranks = [context.Process(target=train_as_rank, args=(rank, tmp_path)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    alone = make_network().cuda().train()
    alone(make_pictures().cuda()).square().sum().backward()
    for name, value in alone.cpu().state_dict().items():
        assert all(torch.allclose(of_rank["state"][name].float(), value.float(), atol=1e-3) for of_rank in found), name
    for name, parameter in alone.named_parameters():
        both = found[0]["gradients"][name] + found[1]["gradients"][name]
        assert torch.allclose(both, parameter.grad.cpu(), rtol=1e-2, atol=1e-3), name
