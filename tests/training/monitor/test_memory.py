import pytest
import torch

from tests.make import cases
from training.monitor.memory import (
    is_out_of_memory,
    largest_fitting_batch,
    out_of_memory,
    peak_memory_gb,
)


def gpu_for(most, tried):
    """A GPU that holds steps of up to `most` pictures."""

    def dry_run(size):
        tried.append(size)
        if size > most:
            raise RuntimeError("FIND was unable to find an engine to execute this computation")

    return dry_run


@pytest.mark.parametrize(("most", "fits", "tries"), [(7, 4, [16, 8, 4]), (16, 16, [16]), (1, 1, [16, 8, 4, 2, 1])])
def test_the_batch_size_that_fits_was_tried(most, fits, tries):
    tried = []
    assert largest_fitting_batch(gpu_for(most, tried), 32) == fits
    assert tried == tries


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(),
        MemoryError(),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("FIND was unable to find an engine to execute this computation"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=lambda error: str(error).partition("\n")[0][:40] or type(error).__name__,
)
def test_out_of_memory_messages_of_all_libraries_are_recognized(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "words", ["mat1 and mat2 shapes cannot be multiplied", "CUDA error: device-side assert triggered", ""]
)
def test_other_errors_are_not_out_of_memory(words):
    assert not is_out_of_memory(RuntimeError(words))


def test_another_error_in_a_dry_run_is_raised():
    def dry_run(_size):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        largest_fitting_batch(dry_run, 8)


def test_a_gpu_without_memory_for_one_picture_has_its_own_message():
    assert largest_fitting_batch(gpu_for(0, []), 5) == 0
    assert "even for one picture" in str(out_of_memory(5, 380, 1, 0))


@pytest.mark.parametrize(("batch", "accumulate", "fits", "size", "windows"), cases(__file__, "batches"))
def test_the_advice_keeps_the_effective_batch(batch, accumulate, fits, size, windows):
    message = str(out_of_memory(batch, 380, accumulate, fits))
    assert f"{fits} fit (tested): --batch-size {size} --accumulate {windows}" in message
    assert size * windows == batch * accumulate
    assert f"of {batch * accumulate}." in message
    assert message.count("\n") == 0


def test_a_size_that_was_not_tried_is_not_called_tested():
    message = str(out_of_memory(32, 380, 1, None))
    assert "may fit: --batch-size 16 --accumulate 2" in message
    assert "tested" not in message


def test_a_cpu_has_no_peak():
    assert peak_memory_gb(torch.device("cpu")) is None
