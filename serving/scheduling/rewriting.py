"""The program that rewrites a network file in place, in a process of its own.

The library `onnx` reads and writes a file in single calls that hold the interpreter's lock: for 70 MB long enough that
the service would answer nothing for a quarter of a second. The memory that they take is gone with the process, too.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

_ROOT: Final = Path(__file__).resolve().parents[2]
_TIMEOUT_S: Final = 300.0  # it takes two seconds


class Rewritten(msgspec.Struct, frozen=True):
    """What was rewritten; see `blocked_graph.BlockedNetwork`."""

    num_scalings: int
    num_into_weights: int


def rewrite(descriptor: int) -> Rewritten:
    """Rewrites a network file with `blocked_graph` in a process of its own.

    Args:
        descriptor: Of the file, which ONNX Runtime optimized for this processor.

    Raises:
        RuntimeError: The process failed; the message is the last line of its log.
        subprocess.TimeoutExpired: It took longer than five minutes, and was killed.
    """
    command = [sys.executable, "-P", "-m", "serving.scheduling.rewriting", str(descriptor)]
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        pass_fds=[descriptor],
        env={**os.environ, "PYTHONPATH": path},
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").split("\n")
        raise RuntimeError(next(filter(None, reversed(lines)), f"its rewriting ended with code {done.returncode}"))
    return msgspec.json.decode(done.stdout, type=Rewritten)


def rewrite_here(descriptor: int) -> Rewritten:
    """Rewrites a network file in this process, see `rewrite`."""
    from serving.scheduling.blocked_graph import keep_blocked

    path = Path(f"/proc/self/fd/{descriptor}")
    rewritten = keep_blocked(path.read_bytes(), block_size())
    if rewritten.num_scalings:
        path.write_bytes(rewritten.file)
    return Rewritten(rewritten.num_scalings, rewritten.num_into_weights)


def block_size() -> int:
    """Returns the number of channels per block in ONNX Runtime's blocked layout on this processor."""
    import onnxruntime

    from serving.scheduling.blocked_graph import one_convolution, read_block_size

    with os.fdopen(os.memfd_create("botanify-convolution"), "rb") as file:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4  # no warning that the file is specific to this processor
        options.optimized_model_filepath = f"/proc/self/fd/{file.fileno()}"
        onnxruntime.InferenceSession(one_convolution(), options, providers=["CPUExecutionProvider"])
        return read_block_size(file.read())


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(rewrite_here(int(sys.argv[1]))))
