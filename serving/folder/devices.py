"""One process a device: each writes its share of the parts, and this process watches what is written."""

import asyncio
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Final

import msgspec

from models.errors import BotanifyError, DataError, InputError
from serving.folder.command import IdentifyFolder
from serving.folder.parts import PartFiles
from serving.folder.plan import Part
from serving.folder.record import BundleName
from serving.folder.rows import Row
from serving.folder.worker import open_worker
from serving.machine import available_cores
from serving.metrics import say_warnings

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_LOOK_S: Final = 1.0


class _Share(msgspec.Struct, frozen=True):
    """What the process of a device does."""

    command: IdentifyFolder
    bundle: BundleName
    files: PartFiles
    parts: Sequence[Part]
    device: str
    num_cores: int


async def write_on_devices(
    command: IdentifyFolder, bundle: BundleName, files: PartFiles, parts: Sequence[Part]
) -> AsyncIterator[list[Row]]:
    """Yields the rows of each part once they are written, in any order.

    If the process of a device ends too early, the others write their shares before the error is raised.

    Args:
        command: The flags, with `--devices`.
        bundle: The bundle that the run started with.
        files: Where the rows go.
        parts: What to identify.

    Raises:
        InputError: There are fewer devices.
        DataError: A process failed; what is wrong stands in its own line on standard error.
    """
    devices = find_devices(command)
    num_cores = max(1, available_cores() // len(devices))
    start = multiprocessing.get_context("spawn").Process
    shares = [
        _Share(command, bundle, files, parts[index :: len(devices)], device, num_cores)
        for index, device in enumerate(devices)
    ]
    processes = [start(target=_write_share, args=(share,)) for share in shares]
    try:
        for process in processes:
            process.start()
        async for rows in _written(files, parts, processes):
            yield rows
    finally:
        await asyncio.to_thread(_end, processes)
    failed = [device for device, process in zip(devices, processes, strict=True) if process.exitcode]
    if failed:
        raise DataError(
            "the process of a device failed",
            value=f"device {', '.join(failed)}",
            remedy="see its message above; the same command continues",
        )


def find_devices(command: IdentifyFolder) -> list[str]:
    """Returns a name for each device to use, as CUDA understands it; on a CPU the processes share the cores.

    Raises:
        InputError: There are fewer than `--devices`, or none.
    """
    if command.provider == "cpu":
        return [str(number) for number in range(1 if command.devices == "all" else command.devices)]
    visible = os.environ.get(_VISIBLE)
    found = _all_gpus() if visible is None else [name for name in visible.split(",") if name]
    wanted = max(len(found), 1) if command.devices == "all" else command.devices
    if wanted > len(found):
        raise InputError(
            "--devices asks for more GPUs than there are", value=wanted, limit=str(len(found)), remedy="lower --devices"
        )
    return found[:wanted]


def _all_gpus() -> list[str]:
    """Asks the program that comes with the driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False).stdout
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


async def _written(
    files: PartFiles, parts: Sequence[Part], processes: Sequence[BaseProcess]
) -> AsyncIterator[list[Row]]:
    """Yields the rows of each part once its file is there, until no process is left."""
    left, is_last = {part.number for part in parts}, False
    while not is_last:
        is_last = not any(process.is_alive() for process in processes)
        for number in left & await asyncio.to_thread(files.written):
            left.remove(number)
            yield files.read(number)
        await asyncio.sleep(0 if is_last else _LOOK_S)


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        if process.pid is not None:
            process.join()


# ---- in the process of a device


def _write_share(share: _Share) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    say_warnings()
    os.environ[_VISIBLE] = share.device  # read when the network is opened
    try:
        asyncio.run(_write(share))
    except (BotanifyError, OSError) as error:
        sys.stderr.write(f"botanify: device {share.device}: {error}\n")
        raise SystemExit(1) from None


async def _write(share: _Share) -> None:
    async with open_worker(share.command, share.bundle, share.files, share.num_cores) as worker:
        async for _ in worker.write(share.parts, lambda _: None):
            pass


def _end_with_parent() -> None:
    """Otherwise this process would go on after its parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
