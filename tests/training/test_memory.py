import pytest
import torch

from training.memory import largest_that_fits, limit_memory, out_of_memory, peak_memory_gb


def card_for(most, tried):
    """A card that holds steps of so many pictures."""

    def rehearse(size):
        tried.append(size)
        if size > most:
            raise torch.OutOfMemoryError

    return rehearse


@pytest.mark.parametrize(("most", "fits", "tries"), [(7, 4, [16, 8, 4]), (16, 16, [16]), (1, 1, [16, 8, 4, 2, 1])])
def test_what_is_said_to_fit_was_tried(most, fits, tries):
    tried = []
    assert largest_that_fits(card_for(most, tried), 32) == fits
    assert tried == tries


def test_a_card_that_holds_no_picture_is_told_as_that():
    assert largest_that_fits(card_for(0, []), 5) == 0
    assert "nor of one" in str(out_of_memory(5, 380, 1, 0))


@pytest.mark.parametrize(("batch", "accumulate", "fits", "windows"), [(32, 1, 16, 2), (32, 2, 8, 8), (5, 1, 2, 3)])
def test_the_sentence_keeps_the_effective_batch(batch, accumulate, fits, windows):
    told = str(out_of_memory(batch, 380, accumulate, fits))
    assert f"--batch-size {fits} --accumulate {windows}" in told
    assert f"of {batch * accumulate}." in told
    assert told.count("\n") == 0


def test_a_cpu_has_no_limit_and_no_peak():
    limit_memory(8, torch.device("cpu"))
    assert peak_memory_gb(torch.device("cpu")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_limited_card_refuses_what_lies_above_the_limit():
    device = torch.device("cuda", 0)
    limit_memory(1.0, device)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * 10**9, dtype=torch.uint8, device=device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
