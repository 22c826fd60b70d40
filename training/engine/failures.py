"""The errors of a step with their cause: memory that ran out, and values that are not finite."""

import torch
from torch import Tensor

from training.engine.checkpoint import Position
from training.engine.nonfinite import Diverged, diagnose
from training.engine.reporting import Reporter
from training.engine.step import Engine
from training.loading.negatives import num_plants
from training.monitor.memory import OutOfMemory, largest_fitting_batch, out_of_memory


def memory_ran_out(engine: Engine, pixels: Tensor, labels: Tensor, *, resumes: bool) -> OutOfMemory:
    """The error for a micro-batch that did not fit; it names a smaller one that was tried and fits.

    Call it where the failed step's own error is no longer alive, since that would keep its tensors.

    Args:
        engine: Trains the network; it is not changed.
        pixels: The micro-batch, as in `Engine.micro_step`.
        labels: Its labels.
        resumes: Whether the run has a checkpoint to continue from.
    """

    def dry_run(size: int) -> None:
        if engine.device.type == "cuda":
            torch.cuda.empty_cache()
        kept = [*range(size), *range(batch_size, len(labels))]  # all pictures without a plant
        engine.dry_run(pixels[kept], labels[kept])

    batch_size = num_plants(labels)
    # The other ranks take no dry run, and synchronized norms would wait for them.
    fits = None if engine.ranks.is_distributed else largest_fitting_batch(dry_run, batch_size)
    accumulate = engine.recipe.schedule.accumulate
    return out_of_memory(batch_size, pixels.shape[-1], accumulate, fits, resumes=resumes)


def diverged(engine: Engine, reporter: Reporter, position: Position, problem: str, pixels: Tensor | None) -> Diverged:
    """The error that gradients or weights are not finite, with the layer where that begins; it is logged.

    Args:
        engine: Trains the network.
        reporter: Gets the problem and its cause.
        position: How far the run has come.
        problem: What is not finite, in words.
        pixels: Pictures of the last micro-batch; None before the first.
    """
    diagnosis = "no step was taken yet"
    if pixels is not None:
        is_fp16, scale = engine.amp_dtype == torch.float16, engine.scaler.get_scale()
        diagnosis = diagnose(engine.network, engine.normalized(pixels), scale, is_fp16)
    reporter.diverged(position.step, problem, diagnosis)
    return Diverged(
        f"{problem} at step {position.step} (epoch {position.epoch + 1}); {diagnosis}; lower the "
        "learning rates, warm up longer, set --clip-norm or train with --amp bf16, then --resume."
    )
