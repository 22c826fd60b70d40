import copy

import msgspec
import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from models.errors import RecipeError
from models.network import PlantNetwork
from training.engine.losses import TrainingClasses
from training.engine.norms import (
    GhostBatchNorm2d,
    NormChoice,
    apply_norms,
    choose_norms,
    freeze_norms,
    has_norms,
    reestimate,
)
from training.engine.step import Engine
from training.processes import clean_context
from training.recipe import NetworkRecipe, Recipe, ScheduleRecipe

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LEAVE, GHOST, SYNC = (NormChoice(kind, False, "") for kind in ("leave", "ghost", "sync"))


def choose(batch_size, norms="auto", num_ranks=1, device=CPU, weights="imagenet", ghost_size=32):
    network = NetworkRecipe(norms=norms, weights=weights, ghost_size=ghost_size)
    return choose_norms(
        Recipe(name="test", network=network, schedule=ScheduleRecipe(batch_size=batch_size)), num_ranks, device
    )


def make_network(norms=LEAVE, ghost_size=4):
    torch.manual_seed(1)
    network = PlantNetwork("test_efficientnet", 3)
    return apply_norms(network, norms, ghost_size)


def norms_of(network):
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def make_pictures(size=8, seed=0):
    return torch.randn(size, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def make_norm(plain=False):
    """A norm with other scales and statistics than the initial ones, and its copy as a `GhostBatchNorm2d`."""
    norm = nn.BatchNorm2d(5) if plain else BatchNormAct2d(5, act_layer=nn.SiLU, momentum=0.3)
    for value in (norm.weight.data, norm.bias.data, norm.running_mean):
        value.normal_(generator=torch.Generator().manual_seed(3))
    return norm, apply_norms(copy.deepcopy(norm), GHOST, 4)


def maps(size=12, seed=0):
    """Activations whose mean differs between groups."""
    found = torch.randn(size, 5, 6, 6, generator=torch.Generator().manual_seed(seed))
    return found * 2 + torch.arange(size)[:, None, None, None] / 4


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
    (257, 1, CUDA, "imagenet", "leave", False, "do not divide"),
    (512, 1, CUDA, "none", "ghost", False, "ghost batches of 32: 512 pictures per batch are many (over 256)"),
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
        ("ghost", 1, CPU, "ghost"),
        ("sync", 2, CUDA, "sync"),
        ("sync", 1, CPU, "leave"),  # all ranks are this one
    ],
)
def test_requested_norms_are_used_at_any_batch_size(asked, num_ranks, device, kind):
    found = choose(4, asked, num_ranks, device, ghost_size=2)
    assert (found.kind, found.reestimate) == (kind, False)


@pytest.mark.parametrize(
    ("batch_size", "options", "message"),
    [
        (16, {"norms": "sync", "num_ranks": 2}, ["sync on cpu", "CUDA", "--norms auto"]),
        (16, {"norms": "frozen", "weights": "none"}, ["random weights", "--weights imagenet"]),
        (48, {"norms": "ghost"}, ["ghost_size 32", "batch_size 48", "--ghost-size 24"]),
        (16, {"norms": "ghost"}, ["--ghost-size 16"]),
        (1, {"norms": "ghost"}, ["set a larger --batch-size"]),
    ],
)
def test_impossible_norms_are_refused_with_a_remedy(batch_size, options, message):
    with pytest.raises(RecipeError) as caught:
        choose(batch_size, **options)
    assert all(words in str(caught.value) for words in message)


@pytest.mark.parametrize("plain", [False, True])
def test_ghost_groups_are_normalized_as_if_each_were_a_batch(plain):
    norm, ghost = make_norm(plain)
    x = maps()
    assert isinstance(ghost, GhostBatchNorm2d)
    apart = torch.cat([norm(group) for group in x.split(4)])
    assert torch.allclose(ghost(x), apart, atol=1e-6)
    assert not torch.allclose(ghost(x), norm(x), atol=0.1)


def test_ghost_groups_have_the_gradients_of_batches_of_their_own():
    norm, ghost = make_norm()
    inputs = [maps().requires_grad_() for _ in range(2)]
    torch.cat([norm(group) for group in inputs[0].split(4)]).square().sum().backward()
    ghost(inputs[1]).square().sum().backward()
    assert torch.allclose(inputs[0].grad, inputs[1].grad, atol=1e-5)
    for name in ("weight", "bias"):
        assert torch.allclose(getattr(norm, name).grad, getattr(ghost, name).grad, rtol=1e-5)


def test_a_step_of_ghost_groups_moves_the_statistics_as_far_as_one_batch():
    norm, ghost = make_norm()
    alike = maps(4).repeat(3, 1, 1, 1)  # three equal groups, whose mean is that of all
    before = norm.running_mean.clone()
    norm(alike)
    ghost(alike)
    assert torch.allclose(ghost.running_mean, norm.running_mean, atol=1e-6)
    assert not torch.allclose(before, norm.running_mean, atol=0.01)
    assert torch.allclose(ghost.running_var, norm.running_var, rtol=0.01)  # the bias of 144 against 432 values
    assert ghost.num_batches_tracked == norm.num_batches_tracked == 1


def test_ghost_groups_keep_the_activation_that_timm_fuses():
    _, ghost = make_norm()
    assert isinstance(ghost.act, nn.SiLU)
    assert ghost(maps()).min() > -0.3  # the minimum of SiLU is -0.28


def test_evaluation_with_ghost_groups_is_plain():
    norm, ghost = make_norm()
    assert torch.equal(ghost.eval()(maps()), norm.eval()(maps()))


def test_a_batch_that_groups_do_not_divide_is_one_group():
    norm, ghost = make_norm()
    for size in (3, 4, 6):
        assert torch.equal(ghost(maps(size)), norm(maps(size)))


def test_a_network_without_batchnorm_has_no_statistics_to_reestimate():
    assert has_norms(make_network())
    recipe = Recipe(name="test", schedule=ScheduleRecipe(batch_size=8))
    classes = TrainingClasses(taxon_of_output=(0, 1, 2), num_taxa=3, samples_of_output=(4.0, 4.0, 4.0))
    engine = Engine(recipe, PlantNetwork("test_vit", 3), CPU, classes, steps_per_epoch=10)
    assert not engine.norms.reestimate
    assert "no BatchNorm" in engine.norms.explanation


def test_ghost_groups_leave_checkpoints_as_they_are():
    plain, ghost = make_network(), make_network(GHOST)
    assert sum(isinstance(norm, GhostBatchNorm2d) for norm in norms_of(ghost)) == len(norms_of(plain)) > 10
    assert list(plain.state_dict()) == list(ghost.state_dict())
    ghost.train()(make_pictures())
    plain.load_state_dict(ghost.state_dict())
    assert torch.equal(plain.eval()(make_pictures()), ghost.eval()(make_pictures()))


def test_ghost_groups_keep_channels_last():
    _, ghost = make_norm()
    assert ghost(maps().to(memory_format=torch.channels_last)).is_contiguous(memory_format=torch.channels_last)


def run_a_step(ghost):
    x = maps().requires_grad_()
    found = ghost(x)
    found.square().sum().backward()
    return found, x.grad, ghost.weight.grad, ghost.bias.grad, *ghost.buffers()


def require_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_the_formula_for_compilers_equals_the_kernels(monkeypatch):
    _, ghost = make_norm()
    for_compilers = copy.deepcopy(ghost)
    expected = run_a_step(ghost)
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    monkeypatch.delattr("torch.cat")  # which the kernels need
    require_same(run_a_step(for_compilers), expected)


@pytest.mark.slow
def test_ghost_groups_are_traced_without_graph_breaks():
    _, ghost = make_norm()
    traced = copy.deepcopy(ghost)
    traced.compile(backend="eager", fullgraph=True, dynamic=False)
    require_same(run_a_step(traced), run_a_step(ghost))
    assert torch.allclose(traced.eval()(maps()), ghost.eval()(maps()), rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize("norms", [LEAVE, GHOST])
def test_reestimation_gives_the_statistics_of_all_pictures_together(norms):
    network = make_network(norms)
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


def test_reestimation_replaces_statistics_that_are_not_finite():
    network = make_network()
    for norm in norms_of(network):
        norm.running_mean.fill_(torch.nan)
    reestimate(network, [make_pictures()])
    assert all(value.isfinite().all() for value in network.state_dict().values())


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
    plain, network = make_network(), make_network(SYNC)
    converted = [module for module in network.modules() if isinstance(module, nn.SyncBatchNorm)]
    assert [type(norm.act) for norm in converted] == [type(norm.act) for norm in norms_of(plain)]
    assert nn.SiLU in {type(norm.act) for norm in converted}
    assert list(network.state_dict()) == list(plain.state_dict())
    assert torch.equal(network.eval()(make_pictures()), plain.eval()(make_pictures()))


def test_a_choice_can_be_serialized():
    assert msgspec.convert(msgspec.to_builtins(GHOST), NormChoice) == GHOST


@pytest.mark.gpu
def test_ghost_groups_on_a_gpu_in_half_precision_are_those_of_a_cpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    _, ghost = make_norm()
    on_gpu = copy.deepcopy(ghost).cuda()
    x = maps().cuda().half().to(memory_format=torch.channels_last)
    assert torch.allclose(on_gpu(x).float().cpu(), ghost(maps()), atol=0.02)
    compiled = torch.compile(on_gpu, dynamic=False)
    assert torch.allclose(compiled(x).float().cpu(), ghost(maps()), atol=0.02)
    assert on_gpu(x).is_contiguous(memory_format=torch.channels_last)


def train_as_rank(rank, folder):
    """One of two ranks, with half of the pictures; Gloo lets both share a GPU."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    network = make_network(SYNC).cuda().train()
    network(make_pictures()[rank::2].cuda()).square().sum().backward()
    gradients = {name: parameter.grad.cpu() for name, parameter in network.named_parameters()}
    torch.save({"state": network.cpu().state_dict(), "gradients": gradients}, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.gpu
def test_two_ranks_with_synchronized_norms_are_one_with_all_pictures(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    context = clean_context("training.engine.norms")
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
