"""The public interface of the engine: micro-batches change the weights, and readings return losses and norms."""

from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import pytest
import timm
import torch
from timm.utils.model_ema import ModelEmaV3
from torch import nn

from models.network import PlantNetwork
from tests.training.small import are_equal, command, weights_of
from training.engine.device import Ranks, allow_tf32
from training.engine.losses import TrainingClasses
from training.engine.reporting import notes_of_run
from training.engine.step import Engine, _avoid_slow_paths
from training.loading.negatives import NOT_A_PLANT, UNKNOWN_PLANT, Negatives, RunInput
from training.network_input import input_spec

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
CLASSES = TrainingClasses(taxon_of_output=(0, 1, 2), num_taxa=3, samples_of_output=(4.0, 4.0, 4.0))
# Without dropout, drop path and mixing, so that steps can be compared.
STILL = ("--dropout", 0, "--cutmix", 0, "--weight-decay", 0, "--ema-decay", 0)
STILL = (*STILL, "--label-smoothing", 0, "--backbone-lr", 0.01, "--head-lr", 0.01)


def make_engine(*flags, frozen=True, **options):
    """An engine on the CPU; frozen norms keep the pictures of a batch independent."""
    recipe = command("data", "run", *STILL, *flags).recipe
    torch.manual_seed(0)
    network = PlantNetwork("test_efficientnet", 3, dropout=recipe.network.dropout)
    if frozen:
        network.timm_model = timm.layers.freeze_batch_norm_2d(network.timm_model)
    inputs = RunInput(recipe, input_spec(recipe), Negatives(), Negatives())
    return Engine(inputs, network, CPU, CLASSES, steps_per_epoch=10, **options)


def batch(size=4, seed=0):
    random = np.random.default_rng(seed)
    pixels = torch.from_numpy(random.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8))
    return pixels, torch.from_numpy(random.integers(0, 3, size))


def gradients(engine):
    """Records the gradient of every optimizer step, as one vector each."""
    found = []
    parameters = [p for group in engine.optimizer.param_groups for p in group["params"]]
    engine.optimizer.register_step_pre_hook(
        lambda *_: found.append(torch.cat([parameter.grad.flatten() for parameter in parameters]))
    )
    return found


def test_unknown_plants_learn_equal_probabilities_and_to_be_plants_and_are_in_no_figure():
    engine = make_engine("--negatives", "things", "--unknown", "strangers")
    found, (pixels, labels) = gradients(engine), batch(7)
    labels[4:6], labels[6:] = UNKNOWN_PLANT, NOT_A_PLANT
    scores = engine.scoring_model.eval()(engine.normalized(pixels))
    log_shares, plants = scores[:, :3].log_softmax(1), torch.nn.functional.logsigmoid(scores[:6, 3])
    of_known = -log_shares[range(4), labels[:4]].mean()
    of_unknown = -(log_shares[4] / 3 + log_shares[5] / 3).sum() / 2
    of_plant_output = -(plants.mean() + torch.nn.functional.logsigmoid(-scores[6, 3])) / 2
    parameters = [p for group in engine.optimizer.param_groups for p in group["params"]]
    expected = torch.autograd.grad(of_known + 0.5 * of_unknown + 0.5 * of_plant_output, parameters)
    engine.micro_step(pixels, labels, step=0)
    torch.testing.assert_close(found[0], torch.cat([each.flatten() for each in expected]), rtol=1e-4, atol=1e-6)
    readings = engine.read()
    assert readings.losses == pytest.approx([of_known.item()])
    assert readings.plant_figures[0][0] == pytest.approx(of_plant_output.item())


def with_scale(engine):
    """Scales the loss on the CPU, as fp16 does on a GPU."""
    engine._scales_loss, engine.scaler = True, torch.amp.GradScaler("cpu", init_scale=1024.0)
    return engine


@pytest.mark.parametrize("clip_norm", [0, 0.01])
def test_a_scaled_loss_gives_the_step_of_an_unscaled_one(clip_norm):
    plain, scaled = make_engine("--clip-norm", clip_norm), with_scale(make_engine("--clip-norm", clip_norm))
    moments = []
    for engine in (plain, scaled):
        engine.micro_step(*batch(), step=0)
        moments.append(torch.cat([state["exp_avg"].flatten() for state in engine.optimizer.state.values()]))
    assert (moments[0] - moments[1]).norm() < 1e-4 * moments[0].norm()
    readings = [engine.read() for engine in (plain, scaled)]
    assert readings[1].gradient_norms == pytest.approx(readings[0].gradient_norms, rel=1e-4)
    assert readings[1].losses == pytest.approx(readings[0].losses)
    assert [each.scale for each in readings] == [1, 1024]


def test_a_scaled_loss_whose_gradients_overflow_halves_the_scale_and_skips_the_step():
    engine = with_scale(make_engine("--clip-norm", 1))
    before = weights_of(engine.network)
    hook = engine.network.register_forward_pre_hook(lambda _, inputs: (inputs[0] * torch.nan,))
    engine.micro_step(*batch(), step=0)
    hook.remove()
    assert are_equal(before, engine.network)
    readings = engine.read()
    assert (readings.bad_steps, readings.scale) == (1, 512)


def as_rank(monkeypatch, rank, *flags):
    """An engine of one of two ranks, whose gradients stay on this rank."""
    monkeypatch.setattr("training.engine.step.DistributedDataParallel", lambda module, **_: module)
    return make_engine(*flags, frozen=False, ranks=Ranks(rank, num_ranks=2))


def test_the_first_scale_of_fp16_is_small_enough_for_the_first_step(monkeypatch):
    monkeypatch.setattr("training.engine.step.amp_dtype", lambda *_: torch.float16)
    assert make_engine().scaler.get_scale() == 2.0**12
    monkeypatch.undo()
    assert make_engine().scaler.get_scale() == 1.0


def test_a_loss_that_is_not_scaled_stays_so_however_many_steps_are_good():
    engine = make_engine()
    engine.scaler.set_growth_interval(1)
    engine.micro_step(*batch(), step=0)
    assert engine.read().scale == 1


def test_rates_of_several_ranks_grow_only_if_that_is_asked_for(monkeypatch):
    usual, scaled = as_rank(monkeypatch, 0), as_rank(monkeypatch, 0, "--scale-lr")
    assert [group["initial_lr"] for group in usual.optimizer.param_groups] == [0.01] * 4
    assert [group["initial_lr"] for group in scaled.optimizer.param_groups] == pytest.approx([0.01 * 2**0.5] * 4)
    offer, told = (
        next(note for note in notes_of_run(engine) if note.startswith("learning rates")) for engine in (usual, scaled)
    )
    assert offer.startswith("learning rates: the recipe's, for 2 times its pictures a step; --scale-lr takes")
    assert told.endswith("of 2 ranks (Malladi et al. 2022), 0.0141 for the backbone and 0.0141 for the head")


def test_each_rank_draws_its_own_dropout(monkeypatch):
    losses = []
    for rank in (0, 1, 0):
        engine = as_rank(monkeypatch, rank, "--dropout", 0.5, "--norms", "leave")
        engine.micro_step(*batch(), step=0)
        losses += engine.read().losses
    assert losses[0] == losses[2] != losses[1]


def test_each_batch_of_each_rank_is_mixed_in_its_own_way(monkeypatch):
    numbers = []
    for rank in (0, 1):
        engine = as_rank(monkeypatch, rank, "--norms", "leave", "--accumulate", 2)
        monkeypatch.setattr(
            engine, "_mix", lambda pixels, labels, number, _unknown: (numbers.append(number), (pixels, labels))[1]
        )
        for step, index in ((0, 0), (0, 1), (1, 0)):
            engine.micro_step(*batch(), step=step, index=index, window=index + 1)
    assert len(set(numbers)) == len(numbers) == 6


def test_gradients_are_exchanged_once_in_a_window(monkeypatch):
    engine, quiet = as_rank(monkeypatch, 0, "--norms", "leave"), []

    class Forward:
        """Stands for DDP, which averages the gradients in each backward pass outside of `no_sync`."""

        def __call__(self, pixels):
            return engine.network(pixels)

        @contextmanager
        def no_sync(self):
            quiet.append(index)
            yield

    engine._forward = engine._ddp = Forward()
    for index in range(3):
        engine.micro_step(*batch(), step=0, index=index, window=3)
    assert quiet == [0, 1]


def test_the_moving_average_is_that_of_timm():
    engine = make_engine("--ema-decay", 0.7, frozen=False)  # steps 6 and later have the whole decay
    reference = ModelEmaV3(engine.network, decay=0.7, use_warmup=True, warmup_power=3 / 4)
    state = weights_of(engine.network)
    for step in range(8):
        if step == 5:  # a loaded state is averaged, too
            engine.load(state, weights_of(engine.eval_model), engine.scaler_state())
        engine.micro_step(*batch(seed=step), step=step)
        reference.update(engine.network, step=step)
        assert are_equal(reference.module.state_dict(), engine.eval_model)
    counts = [value for value in engine.eval_model.state_dict().values() if not value.is_floating_point()]
    assert counts
    assert not are_equal(weights_of(engine.network), engine.eval_model)


@pytest.mark.parametrize("clip_norm", [0, 1])
def test_a_step_whose_gradients_are_not_finite_is_skipped_and_counted(clip_norm):
    engine = make_engine("--clip-norm", clip_norm, "--ema-decay", 0.9, frozen=False)
    engine.micro_step(*batch(), step=0)
    engine.read()
    before = {name: value.clone() for name, value in engine.network.named_parameters()}
    hook = engine.network.register_forward_pre_hook(lambda _, inputs: (inputs[0] * torch.nan,))
    for step in (1, 2):
        engine.micro_step(*batch(), step=step)
    hook.remove()
    readings = engine.read()
    assert (readings.bad_steps, readings.bad_in_a_row) == (2, 2)
    assert all(torch.equal(value, before[name]) for name, value in engine.network.named_parameters())
    for network in (engine.network, engine.eval_model):
        assert all(value.isfinite().all() for value in network.state_dict().values())  # BatchNorm's statistics, too
    engine.micro_step(*batch(), step=3)
    readings = engine.read()
    assert (readings.bad_steps, readings.bad_in_a_row) == (2, 0)
    assert {float(state["step"]) for state in engine.optimizer.state.values()} == {2.0}
    assert not all(torch.equal(value, before[name]) for name, value in engine.network.named_parameters())


def test_bf16_on_a_cpu_has_nearly_the_loss_of_fp32(monkeypatch):
    monkeypatch.setattr("training.engine.device.processor_flags", lambda: {"amx_bf16"})
    losses = {}
    for amp in ("off", "bf16"):
        engine = make_engine("--amp", amp)
        engine.micro_step(*batch(), step=0)
        losses[amp] = engine.read().losses[0]
        assert all(value.dtype == torch.float32 for value in engine.network.parameters())
        assert engine.scaler_state() == {}
    assert losses["bf16"] != losses["off"]
    assert losses["bf16"] == pytest.approx(losses["off"], rel=0.05)


def test_a_dry_run_changes_nothing():
    engine = make_engine(frozen=False)
    before, random_state = weights_of(engine.network), torch.get_rng_state()
    engine.dry_run(*batch())
    assert are_equal(before, engine.network)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(parameter.grad is None for parameter in engine.network.parameters())
    assert engine.read().losses == []


@pytest.mark.parametrize("flags", [(), ("--ema-decay", 0.9)])
def test_scoring_drops_nothing_and_changes_neither_weights_nor_statistics(flags):
    engine = make_engine("--dropout", 0.9, *flags, frozen=False)
    engine.train_mode()
    before, modes = weights_of(engine.network), [module.training for module in engine.network.modules()]
    assert torch.equal(engine.scores(batch()[0]), engine.scores(batch()[0]))
    assert are_equal(before, engine.network)
    engine.train_mode()
    assert [module.training for module in engine.network.modules()] == modes


@pytest.fixture
def restored():
    """Restores the settings of FP32, which can be changed without a GPU."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("allowed", [True, False])
def test_both_settings_of_pytorch_for_tf32_agree(allowed):
    allow_tf32(CUDA, not allowed)
    allow_tf32(CUDA, allowed)
    old = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32  # a mix of the two raises here
    assert old == (allowed, allowed)
    new = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
    assert [name == "tf32" for name in new] == [allowed, allowed]


def test_a_strided_depthwise_convolution_of_a_cpu_computes_in_float32_with_its_own_weights():
    convolution = nn.Conv2d(8, 8, 3, stride=2, groups=8)
    pixels = torch.randn(2, 8, 9, 9)
    expected = convolution(pixels.bfloat16().float()).bfloat16()
    _avoid_slow_paths(nn.Sequential(convolution), CPU)
    average = deepcopy(convolution)
    with torch.no_grad(), torch.amp.autocast("cpu", dtype=torch.bfloat16):
        convolution.weight.zero_()
        assert torch.equal(average(pixels.bfloat16()), expected)
