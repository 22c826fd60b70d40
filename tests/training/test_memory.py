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


@pytest.mark.parametrize(
    ("batch", "accumulate", "fits", "size", "windows"),
    [(32, 1, 16, 16, 2), (32, 2, 8, 8, 8), (15, 1, 7, 5, 3), (100, 1, 12, 10, 10), (7, 2, 3, 1, 14)],
)
def test_the_sentence_keeps_the_effective_batch(batch, accumulate, fits, size, windows):
    told = str(out_of_memory(batch, 380, accumulate, fits))
    assert f"{fits} fit, which was tried: --batch-size {size} --accumulate {windows}" in told
    assert size * windows == batch * accumulate
    assert f"of {batch * accumulate}." in told
    assert told.count("\n") == 0


def test_what_could_not_be_tried_is_not_said_to_be():
    told = str(out_of_memory(32, 380, 1, None))
    assert "may fit: --batch-size 16 --accumulate 2" in told
    assert "tried" not in told


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
