"""The configuration of a rival server. The rivals' programs import this module, so it imports little itself."""

import os
from typing import Annotated, Final, Literal

import msgspec

from models.preprocess import InputSpec

RIVAL_VARIABLE: Final = "BENCHMARK_RIVAL"
"""Environment variable that holds a `RivalTask` as JSON."""

ServerName = Literal["ours", "FastAPI", "LitServe", "BentoML"]
RivalName = Literal["FastAPI", "LitServe", "BentoML"]
Decoding = Literal["full", "reduced"]
"""full: Pillow decodes at full scale, as the rivals' documentation shows; reduced: our decode at a reduced scale."""

Arithmetic = Literal["fp32", "bf16"]
"""What our service computes in: fp32 with ONNX Runtime, or bf16 with OpenVINO."""

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0.0)]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Processes, threads, batching and limits of a rival server."""

    workers: Count = 1
    """Processes that decode and run."""
    threads: Count = 1
    """Requests that one process handles at the same time."""
    intra_op: Count = 1
    """Threads of ONNX Runtime in one run of the network."""
    spinning: bool = False
    """Let these threads spin between operators, as by ONNX Runtime's default."""
    batch: Count = 1
    """Largest number of pictures in one run."""
    max_in_flight: Count | None = None
    """Requests in the server before it refuses more; None: no limit."""
    timeout_s: Positive | None = None
    """Longest time in the queue before the server drops a request; None: its default."""

    def __str__(self) -> str:
        parts = [f"{self.workers} x {self.threads} requests at once, {self.intra_op} threads a run"]
        parts += ["spinning"] if self.spinning else []
        parts += [f"batches of {self.batch}"] if self.batch > 1 else []
        parts += [f"at most {self.max_in_flight} in flight"] if self.max_in_flight else []
        parts += [f"drops after {self.timeout_s:g} s"] if self.timeout_s else []
        return ", ".join(parts)


class RivalTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a rival server must know: the network and its configuration."""

    network: str
    """Path of the ONNX file."""
    input: InputSpec
    temperature: float
    """Divides the logits before the softmax."""
    decoding: Decoding
    config: ServerConfig
    port: int

    def as_environment(self) -> dict[str, str]:
        """The environment variable for the rival's program."""
        return {RIVAL_VARIABLE: msgspec.json.encode(self).decode()}


def read_task() -> RivalTask:
    """The task of this process, from its environment."""
    return msgspec.json.decode(os.environ[RIVAL_VARIABLE], type=RivalTask)
