"""Who trains together: the ranks that torchrun started, and what they tell one another outside of the network.

A process that torchrun did not start is alone, and every function here then does nothing. Ranks agree over a group of
the hosts (Gloo), never over the GPUs', so that nothing here makes a host wait for its device.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.errors import BotanifyError

Told = TypeVar("Told")
# Long enough for a validation that one rank ends sooner than another; a rank that dies is noticed at once.
_PATIENCE = timedelta(minutes=30)
_LOST = ("Connection closed", "Connection reset", "NCCL")


class Ranks:
    """The place of this process among those that train together.

    Args:
        rank: Its number over all machines.
        num_ranks: How many there are.
        local_rank: Its number on this machine, which is that of its GPU.
        hosts: Group in which hosts agree; the default group if None.
    """

    def __init__(
        self, rank: int = 0, num_ranks: int = 1, local_rank: int = 0, hosts: dist.ProcessGroup | None = None
    ) -> None:
        self.rank, self.num_ranks, self.local_rank, self._hosts = rank, num_ranks, local_rank, hosts

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files and talks to people."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether nobody trains with this process."""
        return self.num_ranks == 1

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank; all learn the same."""
        return bool(self.maximum(flag))

    def maximum(self, value: float) -> float:
        """The largest of all ranks' values."""
        return value if self.alone else self._extreme(value, dist.ReduceOp.MAX)

    def minimum(self, value: float) -> float:
        """The smallest of all ranks' values."""
        return value if self.alone else self._extreme(value, dist.ReduceOp.MIN)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums of each value over all ranks."""
        if self.alone:
            return list(values)
        told = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(told, group=self._hosts)
        return [float(value) for value in told]

    def mean(self, values: Sequence[float]) -> list[float]:
        """Means of each value over all ranks."""
        return [value / self.num_ranks for value in self.sum(values)]

    def from_first(self, value: Told) -> Told:
        """What the first rank holds."""
        if self.alone:
            return value
        told = [value]
        dist.broadcast_object_list(told, src=0, group=self._hosts)
        return told[0]

    def mean_statistics(self, network: nn.Module) -> None:
        """Gives every rank the mean of all ranks' BatchNorm statistics, so that all judge and save the same network."""
        if self.alone:
            return
        self.mean_([value for name, value in network.named_buffers() if name.endswith(("running_mean", "running_var"))])

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Gives every rank the mean of all ranks' tensors, over the devices' group: in place, and no host waits."""
        if self.alone or not tensors:
            return
        together = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(together)
        together /= self.num_ranks
        for tensor, part in zip(tensors, torch.split(together, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def _extreme(self, value: float, which: dist.ReduceOp.RedOpType) -> float:
        told = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(told, op=which, group=self._hosts)
        return float(told.item())

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """The first rank runs the block before the others do: what it writes is there when they come.

        Raises:
            BotanifyError: On the other ranks, if the first one failed: it says why.
        """
        if self.alone:
            yield
            return
        if not self.is_first and self.any(False):
            raise BotanifyError("the first rank failed; it says why.")
        try:
            yield
        except BaseException:
            if self.is_first:
                self.any(True)
            raise
        if self.is_first:
            self.any(False)


def join(device_type: str) -> Ranks:
    """Joins the ranks that torchrun started; without torchrun, a process is alone.

    Args:
        device_type: "cuda" or "cpu": where gradients are averaged (NCCL or Gloo).
    """
    if "RANK" not in os.environ:
        return Ranks()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device_type == "cuda":
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl", timeout=_PATIENCE, device_id=torch.device("cuda", local_rank))
        hosts = cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=_PATIENCE))
    else:
        dist.init_process_group("gloo", timeout=_PATIENCE)
        hosts = None
    return Ranks(dist.get_rank(), dist.get_world_size(), local_rank, hosts)


def leave() -> None:
    """Ends the connections to the other ranks, at an end that all ranks reach: each waits for the others to do it."""
    if dist.is_initialized():
        dist.destroy_process_group()


def alone() -> bool:
    """Whether this process has joined nobody."""
    return not dist.is_initialized()


def end_at_once(code: int) -> None:
    """Ends a rank that failed without waiting for the others, which torchrun then ends; a process alone returns."""
    if not alone():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def lost_a_rank(error: RuntimeError) -> bool:
    """Whether the error only says that another rank has gone, whose own words tell why."""
    return not alone() and any(word in str(error) for word in _LOST)


def times_restarted() -> int:
    """How often torchrun has started this group of ranks anew, as after the death of one."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def launch_id() -> str:
    """What torchrun calls this launch, the same for all its ranks and restarts; empty without torchrun."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")
