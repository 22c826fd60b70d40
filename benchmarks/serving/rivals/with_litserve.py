"""Program: LitServe and ONNX Runtime, as its documentation has it: decode, predict and encode in worker processes."""

from typing import Any

import litserve  # type: ignore[import-not-found]
import numpy as np
from fastapi import Request  # type: ignore[import-not-found]

from benchmarks.serving.rivals.identifier import Array, Identifier
from benchmarks.serving.server_config import RivalTask, read_task


class Identification(litserve.LitAPI):  # type: ignore[misc]
    """Identifies one picture a request, in batches where the config asks for them."""

    def __init__(self, task: RivalTask) -> None:
        super().__init__(max_batch_size=task.config.batch, batch_timeout=0.01, api_path="/identify")
        self._task = task

    def setup(self, device: str) -> None:
        """Loads the network, once in every worker."""
        del device
        self._identifier = Identifier(self._task)

    def decode_request(self, request: Request) -> Array:
        """The network's input, from the form's field `image`; the annotation tells LitServe to take forms."""
        pixels: Array = self._identifier.pixels(request["image"].file.read())
        return pixels

    def predict(self, pixels: Array) -> Array:
        """Logits, one row a picture where pictures come in batches."""
        batch = pixels if self._task.config.batch > 1 else pixels[np.newaxis]
        logits: Array = self._identifier.run(batch)
        return logits if self._task.config.batch > 1 else logits[0]

    def encode_response(self, logits: Array) -> Any:
        """The likeliest outputs."""
        return self._identifier.top(logits)


def main() -> None:
    """Serves until it is told to stop."""
    task = read_task()
    config = task.config
    timeout = {} if config.timeout_s is None else {"timeout": config.timeout_s}
    server = litserve.LitServer(
        Identification(task), accelerator="cpu", devices=1, workers_per_device=config.workers, **timeout
    )
    server.run(
        host="127.0.0.1",
        port=task.port,
        num_api_servers=1,  # one process takes far more requests than all workers answer
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )


if __name__ == "__main__":
    main()
