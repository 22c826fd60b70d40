"""Program: measures the memory that a decoder process takes for each file of a folder, against what was granted.

python -m tests.models.hostile FOLDER                                     # draws hostile files
python benchmarks/serving/decoder_memory.py --files FOLDER [--out FILE.json]

Each file gets a new process. Linux only.
"""

import asyncio
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import psutil  # type: ignore[import-untyped]
import tyro

from benchmarks.serving.flags import write_result
from models.decode_cost import decode_cost, header_cost
from models.errors import BotanifyError, PictureError
from models.preprocess import InputSpec
from serving.decoding.pool import DecodeLimits, DecoderPool
from serving.metrics import Metrics
from training.insight.studies.report import table
from training.machine import Machine, this_machine
from training.program import run_program

_SPEC = InputSpec(height=380, width=380, train_px=380)
_LIMITS = DecodeLimits(picture_bytes=20_000_000, budget_bytes=512_000_000, child_bytes=768_000_000, seconds=5.0)


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """Measures each file of a folder."""

    files: Path
    """Folder of picture files."""
    out: Path | None = None
    """File for the result, JSON."""


class FileMemory(msgspec.Struct, frozen=True):
    """What one file took."""

    name: str
    num_bytes: int
    outcome: str
    granted_mb: float
    """The larger grant of its two steps, MB."""
    peak_mb: float
    """Growth of the resident memory of its process, MB."""
    decode_s: float
    """Processor time, s."""


class DecoderMemory(msgspec.Struct, frozen=True):
    """The result of the program."""

    machine: Machine
    measured_on: str
    files: list[FileMemory]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(Files, description=__doc__)))


def measure(command: Files) -> None:
    """Measures each file, prints a table and, with `out`, writes the result."""
    taken = [asyncio.run(_measure(path.name, path.read_bytes())) for path in sorted(command.files.iterdir())]
    result = DecoderMemory(this_machine(), datetime.now(UTC).date().isoformat(), taken)
    print(markdown(result))
    write_result(result, command.out)


def markdown(result: DecoderMemory) -> str:
    """Returns the result as a Markdown table."""
    rows = [
        [one.name, f"{one.num_bytes / 1e6:.2f}", one.outcome, f"{one.granted_mb:.0f}", f"{one.peak_mb:.0f}"]
        for one in result.files
    ]
    return f"{result.machine}:\n\n{table(['file', 'MB', 'outcome', 'granted, MB', 'peak, MB'], rows)}"


async def _measure(name: str, data: bytes) -> FileMemory:
    pool, others = DecoderPool(1, _LIMITS, Metrics()), set(psutil.Process().children())
    await pool.start()
    try:
        (child,) = set(psutil.Process().children()) - others
        before, time = _reset_peak(child.pid), pool.decode_time()
        try:
            await pool.decode(data, _SPEC, time)
            outcome = "decoded"
        except BotanifyError as error:
            outcome = error.code
        peak = _status_bytes(child.pid, "VmHWM") - before
    finally:
        await pool.close()
    return FileMemory(name, len(data), outcome, _granted(data) / 1e6, peak / 1e6, time.seconds - time.left_s)


def _granted(data: bytes) -> int:
    try:
        with warnings.catch_warnings(action="ignore"):  # Pillow warns of each wrong tag
            return max(header_cost(len(data)), decode_cost(data, _SPEC).num_bytes)
    except PictureError:
        return header_cost(len(data))


def _reset_peak(pid: int) -> int:
    """Resets the kernel's peak of resident memory, and returns its bytes now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status_bytes(pid, "VmRSS")


def _status_bytes(pid: int, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    main()
