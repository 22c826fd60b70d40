"""Takes two optimizer steps of each of some recipes on a GPU that is not there, and prints what they did as JSON.

python tests/rehearsal/step.py JSON    # in the environment that tests/rehearsal/gpu.py makes

JSON is a list of cases: a recipe's name, and what overrides it, as in ["plants", {"schedule": {"batch_size": 16}}].
`planted` names a defect to plant, and `num_outputs` the classes. A step that fails has a report with its error.
"""

import gc
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

import msgspec  # noqa: E402
import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from models.network import PlantNetwork  # noqa: E402
from tests.rehearsal.recorder import Recorder, allow_fake_modules  # noqa: E402
from training.engine.losses import TrainingClasses  # noqa: E402
from training.engine.step import Engine  # noqa: E402
from training.loading.negatives import NOT_A_PLANT  # noqa: E402
from training.recipe import check_recipe, read_recipe  # noqa: E402
from training.toml_file import section_to_plain  # noqa: E402

DEVICE = torch.device("cuda:0")
_STEP = 5


def main():
    allow_fake_modules()
    reports = []
    for recipe, overrides in json.loads(sys.argv[1]):
        try:
            reports.append(_report(recipe, overrides))
        except Exception as error:  # such as of a tensor that stayed on the CPU
            reports.append({"error": f"{type(error).__name__}: {error}"})
        gc.collect()
    print(msgspec.json.encode(reports).decode())


def _report(name, overrides):
    planted, num_outputs = overrides.pop("planted", None), overrides.pop("num_outputs", 5337)
    plain = section_to_plain(read_recipe(Path(name)))
    for section, values in ({"hardware": {"device": "cuda", "compile": "off"}} | overrides).items():
        plain[section] = plain[section] | values
    recipe = check_recipe(plain, "rehearsal")
    shape, schedule, size = recipe.network, recipe.schedule, recipe.schedule.batch_size
    negatives = max(1, size // 8) if recipe.negatives.negatives else 0
    network = PlantNetwork(shape.architecture, num_outputs, dropout=shape.dropout, drop_path=shape.dropout / 2)
    classes = TrainingClasses(tuple(range(num_outputs)), num_outputs, (300.0,) * num_outputs)
    side = recipe.pictures.picture_px
    pixels = torch.zeros((size + negatives, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    labels = torch.cat([torch.arange(size) % num_outputs, torch.full((negatives,), NOT_A_PLANT)])
    with FakeTensorMode(allow_non_fake_inputs=True), Recorder() as recorder:
        engine = Engine(recipe, network, DEVICE, classes, steps_per_epoch=1000)
        _plant(planted, engine)
        batch = (pixels, labels) if planted == "unpinned" else (pixels.pin_memory(), labels.pin_memory())
        for step in (_STEP, _STEP + 1):
            recorder.reset()
            before_bytes = recorder.live_bytes
            for index in range(schedule.accumulate):
                engine.micro_step(*batch, step=step, index=index, window=schedule.accumulate)
        return {
            "norms": engine.norms.kind,
            "amp": str(engine.amp_dtype).removeprefix("torch."),
            "waits": recorder.waits,
            "to_device": recorder.to_device,
            "kernels": recorder.kernels,
            "moved_mb_a_picture": round(recorder.moved_bytes / 1e6 / size / schedule.accumulate, 1),
            "types": dict(recorder.types),
            "layouts": dict(recorder.layouts),
            "wide_maps": dict(recorder.wide_maps),
            "peak_mb": round(recorder.peak_bytes / 1e6),
            "fixed_mb": round(before_bytes / 1e6),
            "states": sorted(
                {str(value.dtype) for state in engine.optimizer.state.values() for value in state.values()}
            ),
            "parameters": sorted({str(value.dtype) for value in engine.scoring_model.parameters()}),
        }


def _plant(defect, engine):
    """Plants a defect that the rehearsal must find."""
    if defect == "item":
        loss = engine.loss
        engine.loss = lambda *tensors: loss(*tensors) + 0.0 * float(tensors[0].sum().item())
    elif defect == "cpu tensor":
        loss = engine.loss
        engine.loss = lambda scores, targets: loss(scores + torch.ones(scores.shape), targets)
    elif defect == "wide convolution":
        engine.precision = lambda: torch.autocast("cuda", enabled=False)
    elif defect == "NCHW":
        engine._memory_format = torch.contiguous_format
    elif defect == "blocking copy":
        normalized = engine.normalized
        engine.normalized = lambda pixels: normalized(pixels.to(DEVICE))


if __name__ == "__main__":
    main()
