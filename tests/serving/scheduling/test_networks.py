"""The precision of the network that is opened."""

from itertools import combinations
from pathlib import Path

import pytest

from models.bundle import Bundle, NetworkFile
from serving.scheduling.networks import choose_precision
from tests.models.tiny import TAXONOMY, bundle_record

FASTEST = {False: ("int8", "fp32", "fp16"), True: ("fp16", "fp32", "int8")}
SETS = [names for size in (1, 2, 3) for names in combinations(FASTEST[False], size)]


@pytest.mark.parametrize("names", SETS, ids="+".join)
@pytest.mark.parametrize("cuda", [False, True], ids=["cpu", "gpu"])
def test_the_fastest_precision_of_the_device_is_opened_unless_another_is_asked_for(names, cuda):
    networks = {name: NetworkFile(f"{name}.onnx", temperature=1.0) for name in names}
    bundle = Bundle(Path("nowhere"), bundle_record(networks=networks), TAXONOMY)
    assert choose_precision(bundle, None, cuda=cuda) == next(name for name in FASTEST[cuda] if name in names)
    assert all(choose_precision(bundle, name, cuda=cuda) == name for name in names)
