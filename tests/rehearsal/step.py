"""Takes two optimizer steps of each of some recipes on a GPU that is not there, and prints what they did as JSON.

python tests/rehearsal/step.py JSON    # with the library of cuda_runtime.c loaded before

JSON is a list of cases: a recipe's name, and what overrides it, as in ["plants", {"schedule": {"batch_size": 16}}].
`num_outputs` is the number of classes, and `planted` names the defects to plant.
"""

import gc
import json
import sys
from pathlib import Path
from unittest.mock import Mock

sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from models.network import PlantNetwork  # noqa: E402
from tests.rehearsal.recorder import Recorder, allow_fake_modules  # noqa: E402
from training.engine.losses import TrainingClasses  # noqa: E402
from training.engine.step import Engine  # noqa: E402
from training.loading.negatives import NOT_A_PLANT, Negatives, RunInput  # noqa: E402
from training.network_input import input_spec  # noqa: E402
from training.recipe import check_recipe, read_recipe  # noqa: E402
from training.toml_file import section_to_plain  # noqa: E402

DEVICE = torch.device("cuda:0")
_STEP = 5


def main():
    allow_fake_modules()
    reports = []
    for recipe, overrides in json.loads(sys.argv[1]):
        reports.append(_report(recipe, **overrides))
        gc.collect()
    print(json.dumps(reports))


def _report(name, planted=(), num_outputs=5337, **overrides):
    plain = section_to_plain(read_recipe(Path(name)))
    for section, values in ({"hardware": {"device": "cuda", "compile": "off"}} | overrides).items():
        plain[section] = plain[section] | values
    recipe = check_recipe(plain, "rehearsal")
    shape, schedule, size = recipe.network, recipe.schedule, recipe.schedule.batch_size
    negatives = max(1, size // 8) if recipe.negatives.negatives else 0
    network = PlantNetwork(shape.architecture, num_outputs, dropout=shape.dropout, drop_path=shape.dropout / 2)
    classes = TrainingClasses(tuple(range(num_outputs)), num_outputs, (300.0,) * num_outputs)
    side = recipe.pictures.picture_px
    pixels = torch.zeros((size + negatives, side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2).pin_memory()
    labels = torch.cat([torch.arange(size) % num_outputs, torch.full((negatives,), NOT_A_PLANT)]).pin_memory()
    inputs = RunInput(recipe, input_spec(recipe), Negatives(), Negatives())
    with FakeTensorMode(allow_non_fake_inputs=True), Recorder() as recorder:
        engine = Engine(inputs, network, DEVICE, classes, steps_per_epoch=1000)
        for defect in planted:
            _plant(defect, engine)
        for step in (_STEP, _STEP + 1):
            recorder.reset()
            for index in range(schedule.accumulate):
                engine.micro_step(pixels, labels, step=step, index=index, window=schedule.accumulate)
        states = [value.dtype for state in engine.optimizer.state.values() for value in state.values()]
        return {
            "amp": str(engine.amp_dtype).removeprefix("torch."),
            "waits": recorder.waits,
            "to_device": recorder.to_device,
            "kernels": recorder.kernels,
            "types": list(recorder.types),
            "layouts": list(recorder.layouts),
            "peak_mb": round(recorder.peak_bytes / 1e6),
            "stored": sorted({*map(str, states), *(str(each.dtype) for each in engine.scoring_model.parameters())}),
        }


def _plant(defect, engine):
    """Plants a defect that the rehearsal must find."""
    loss, normalized = engine.loss, engine.normalized
    if defect == "waits: _local_scalar_dense":
        engine.loss = lambda *tensors: loss(*tensors) + 0.0 * float(tensors[0].sum().item())
    elif defect == "waits: a copy to the host":
        engine._losses = Mock(append=Tensor.cpu)
    elif defect == "not in float16":
        engine.precision = lambda: torch.autocast("cuda", enabled=False)
    elif defect == "layout NCHW":
        engine._memory_format = torch.contiguous_format
    else:
        engine.normalized = lambda pixels: normalized(pixels.to(DEVICE))


if __name__ == "__main__":
    main()
