"""Watches every operation of a training step on a GPU that is not there: waits, copies, types, layouts, memory.

Tensors on the device are fake: they have shapes, types and layouts, and no values (`FakeTensorMode`), and an operation
over tensors of two devices is an error. What a step does on the CPU is real. Not seen: the speed of kernels, their
numbers, and races between streams.
"""

import traceback
import weakref
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[2]
PRODUCTS = {"convolution", "cudnn_convolution", "convolution_backward", "mm", "addmm", "bmm"}
SIZES_BY_VALUE = {"nonzero", "masked_select", "_unique2"}
INDEXED = {"index", "index_put_", "_index_put_impl_"}
ALLOCATED_BYTES = 512  # the allocator rounds up to this


class Recorder(TorchDispatchMode):
    """Counts what the operations of a step do on the device."""

    def __init__(self):
        super().__init__()
        self.live_bytes, self._storages = 0, set()
        self.reset()

    def reset(self):
        """Forgets what was counted; the memory in use stays."""
        self.kernels, self.waits, self.to_device = 0, [], []
        self.types, self.layouts = Counter(), Counter()
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        space, _, name = operator._schema.name.partition("::")
        if space == "prim":
            return operator(*args, **kwargs)
        taken = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not any(isinstance(tensor, FakeTensor) for tensor in taken) and "cuda" not in str(kwargs.get("device")):
            with _disable_current_modes():
                return operator(*args, **kwargs)
        if name == "_local_scalar_dense":
            self.waits.append(_place(name))
            return 0.5 if taken[0].is_floating_point() else 1
        by_mask = name in INDEXED and any(tensor.dtype == torch.bool for tensor in taken[1:])
        if (name in SIZES_BY_VALUE or by_mask) and taken[0].is_cuda:
            self.waits.append(_place(name))
        given = operator(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in [*taken, *results] if tensor.dim() > 0}
        if name in {"_to_copy", "copy_"} and taken[-1].device != results[0].device:
            self._note_copy(taken[-1], kwargs.get("non_blocking", args[2:3] == (True,)))
        if "cuda" in devices and not operator.is_view and name != "detach":
            self._note_kernel(name, taken, results)
        return given

    def _note_copy(self, source, later):
        if source.is_cuda:
            self.waits.append(_place("a copy to the host"))
            return
        with _disable_current_modes():
            is_pinned = not isinstance(source, FakeTensor) and source.is_pinned()
        self.to_device.append([str(source.dtype).removeprefix("torch."), bool(is_pinned and later), _place("a copy")])

    def _note_kernel(self, name, taken, results):
        self.kernels += 1
        if name in PRODUCTS:
            kinds = sorted({str(each.dtype).removeprefix("torch.") for each in taken if each.dim() > 1})
            self.types[f"{name}: {'+'.join(kinds)}"] += 1
        for each in results:
            if each.dim() == 4 and each.shape[2] * each.shape[3] > 1 and each.shape[1] > 1:
                last = each.is_contiguous(memory_format=torch.channels_last)
                self.layouts["NHWC" if last else f"NCHW: {name}"] += 1
            self._hold(each)

    def _hold(self, tensor):
        storage = tensor.untyped_storage()
        if not tensor.is_cuda or storage._cdata in self._storages:
            return
        size = -(-storage.nbytes() // ALLOCATED_BYTES) * ALLOCATED_BYTES
        self._storages.add(storage._cdata)
        weakref.finalize(storage, self._release, storage._cdata, size)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _release(self, key, size):
        self._storages.discard(key)
        self.live_bytes -= size


def allow_fake_modules():
    """Lets modules of fake tensors move and be copied: limits of fake tensors, not of the project."""

    def apply(module, change, recurse=True):
        for child in module.children():
            apply(child, change)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                with torch.no_grad():
                    module._parameters[name] = nn.Parameter(change(parameter), parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = change(buffer)
        return module

    def copied(tensor, memo):
        if id(tensor) not in memo:
            clone = tensor.detach().clone(memory_format=torch.preserve_format)
            memo[id(tensor)] = nn.Parameter(clone, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else clone
        return memo[id(tensor)]

    nn.Module._apply = apply
    FakeTensor.__deepcopy__ = nn.Parameter.__deepcopy__ = copied


def _place(what):
    """Names an operation with the line of the project that led to it."""
    ours = [frame for frame in traceback.extract_stack() if frame.filename.startswith(str(ROOT / "training"))]
    return f"{what} at {Path(ours[-1].filename).relative_to(ROOT)}:{ours[-1].lineno}" if ours else what
