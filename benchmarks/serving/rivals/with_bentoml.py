"""Service: BentoML and ONNX Runtime, started with `bentoml serve with_bentoml:Identification`.

Without its adaptive batching: on a CPU a picture of a batch takes longer than one alone.
"""

from pathlib import Path
from typing import Any

import bentoml  # type: ignore[import-not-found]
import numpy as np
from PIL import Image

from benchmarks.serving.rivals.identifier import Identifier
from benchmarks.serving.server_config import read_task

TASK = read_task()
_SETTING = TASK.config
_TRAFFIC: dict[str, Any] = {}
if _SETTING.timeout_s is not None:
    _TRAFFIC["timeout"] = _SETTING.timeout_s
if _SETTING.max_in_flight is not None:
    _TRAFFIC["max_concurrency"] = _SETTING.max_in_flight
_KNOBS: dict[str, Any] = {
    "workers": _SETTING.workers,
    "threads": _SETTING.threads,
    "traffic": _TRAFFIC,
    "logging": {"access": {"enabled": False}},
}


class _Full:
    """Takes an opened picture, as BentoML's documentation has it."""

    def __init__(self) -> None:
        self._identifier = Identifier(TASK)

    @bentoml.api  # type: ignore[untyped-decorator]
    def identify(self, image: Image.Image) -> dict[str, Any]:
        """Identifies one picture."""
        pixels = self._identifier.pixels_of(image)
        return self._identifier.top(self._identifier.run(pixels[np.newaxis])[0])


class _Reduced:
    """Takes a file, whose bytes our own preprocessing decodes."""

    def __init__(self) -> None:
        self._identifier = Identifier(TASK)

    @bentoml.api  # type: ignore[untyped-decorator]
    def identify(self, image: Path) -> dict[str, Any]:
        """Identifies one picture."""
        return self._identifier.answer(image.read_bytes())


Identification = bentoml.service(**_KNOBS)(_Full if TASK.decoding == "full" else _Reduced)
