"""What every rival does with a picture: the same network file, the same crop, the same answer."""

import io
import json
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image, ImageOps

from benchmarks.serving.server_config import RivalTask
from models.preprocess import picture_to_input, to_network_input
from models.session import INPUT_NAME, LOGITS_NAME, OUTPUT_KEYS_FIELD

Array = npt.NDArray[np.float32]
_TOP: Final = 20


class Identifier:
    """A network and its preprocessing."""

    def __init__(self, task: RivalTask) -> None:
        self._task = task
        self._session = _open(task)
        fields = self._session.get_modelmeta().custom_metadata_map
        self._keys: list[str] = json.loads(fields[OUTPUT_KEYS_FIELD])
        self.run(np.zeros((1, 3, task.input.height, task.input.width), np.float32))  # the first run is slow

    def answer(self, picture: bytes) -> dict[str, Any]:
        """The likeliest outputs for the bytes of a picture."""
        return self.top(self.run(self.pixels(picture)[np.newaxis])[0])

    def pixels(self, picture: bytes) -> Array:
        """The network's input for the bytes of a picture, shape (3, height, width)."""
        if self._task.decoding == "reduced":
            return picture_to_input(picture, self._task.input)[0]
        return self.pixels_of(Image.open(io.BytesIO(picture)))

    def pixels_of(self, image: Image.Image) -> Array:
        """The same for an opened picture, every pixel of which is decoded."""
        upright = ImageOps.exif_transpose(image).convert("RGB")
        return to_network_input(upright, self._task.input)

    def run(self, pixels: Array) -> Array:
        """Logits, shape (batch, num_outputs), for pictures of shape (batch, 3, height, width)."""
        logits: Array = self._session.run([LOGITS_NAME], {INPUT_NAME: pixels})[0]
        return logits

    def top(self, logits: Array) -> dict[str, Any]:
        """The likeliest outputs by key, with calibrated probabilities, from the logits of one picture."""
        scaled = logits / self._task.temperature
        shares = np.exp(scaled - scaled.max())
        shares /= shares.sum()
        best = np.argsort(shares)[::-1][:_TOP]
        return {"outputs": [{"key": self._keys[index], "score": float(shares[index])} for index in best]}


def _open(task: RivalTask) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.config.intra_op
    options.inter_op_num_threads = 1
    spinning = "1" if task.config.spinning else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    return onnxruntime.InferenceSession(task.network, options, providers=["CPUExecutionProvider"])
