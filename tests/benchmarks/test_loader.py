import json

import pytest
import torch
from PIL import Image

from benchmarks.loader import Loader, measure
from benchmarks.loader_variants import LoaderOptions, make_set, open_loader
from tests.training.small import draw, write_pictures

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # timm leaves them to the collector
VARIANTS = ("torchvision", "timm", "files", "shards")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("small") / "flowers", per_class=3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_loader_normalizes_a_color_to_the_same_numbers(variant, tmp_path):
    color = (200, 100, 20)
    Image.new("RGB", (80, 60), color).save(tmp_path / "orange.jpg", quality=95)
    options = LoaderOptions(side_px=48, augmentation="crop and flip", batch_size=4)
    pictures = make_set("small", [tmp_path / "orange.jpg"], 4, tmp_path / "scratch")
    (pixels,) = open_loader(variant, pictures, options)(0)
    expected = (torch.tensor(color) / 255 - torch.tensor(options.spec.mean)) / torch.tensor(options.spec.std)
    assert (pixels - expected.view(3, 1, 1)).abs().max() < 0.05


def test_a_run_compares_all_loaders_and_writes_the_result(small, tmp_path, capsys):
    draw("crimson", "ellipse", 1, size=(640, 480)).save(tmp_path / "large.jpg")
    draw("crimson", "ellipse", 2).save(tmp_path / "not_a_camera_file.jpg")
    out = tmp_path / "new" / "loader.json"
    sizes = {"num_small": 4, "num_camera": 4, "batch_size": 4, "least_camera_mp": 0.3}
    measure(Loader(small=small, camera=tmp_path, sides=(32,), rounds=2, **sizes, out=out))
    written = json.loads(out.read_text())
    assert {"processor", "num_cores", "libraries", "git_commit"} <= set(written["machine"])
    compared = [(found["pictures"], found["setting"]["augmentation"]) for found in written["comparisons"]]
    assert compared == [(name, how) for name in ("small", "camera") for how in ("crop and flip", "RandAugment")]
    for comparison in written["comparisons"]:
        assert {*VARIANTS} <= {rate["variant"] for rate in comparison["rates"]}
        for rate in comparison["rates"]:
            assert len(rate["per_s"]) == len(rate["per_core_s"]) == 2
            assert min(rate["per_s"] + rate["per_core_s"]) > 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 4
    assert len({line.count("|") for line in table}) == 1
    assert "small, 0.0051 to 0.0051 MP" in table[2]
    assert "camera, 0.31 to 0.31 MP" in table[4]
