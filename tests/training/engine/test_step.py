import pytest
import torch

from training.engine.step import _allow_tf32

CUDA = torch.device("cuda", 0)


@pytest.fixture
def restored():
    """Puts the arithmetic of FP32 back as it was; what it is told of can be set without a GPU."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("allowed", [True, False])
def test_both_of_pytorch_s_names_for_tf32_agree(allowed):
    _allow_tf32(CUDA, not allowed)
    _allow_tf32(CUDA, allowed)
    old = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32  # a mix of the two raises here
    assert old == (allowed, allowed)
    new = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
    assert [name == "tf32" for name in new] == [allowed, allowed]


@pytest.mark.usefixtures("restored")
def test_the_arithmetic_of_a_cpu_is_left_alone():
    before = torch.get_float32_matmul_precision(), torch.backends.mkldnn.matmul.fp32_precision
    _allow_tf32(torch.device("cpu"), True)
    assert (torch.get_float32_matmul_precision(), torch.backends.mkldnn.matmul.fp32_precision) == before
