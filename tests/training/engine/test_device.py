import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys
from training.engine.device import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def step():
    block = libc.malloc(64_000_000)
    ctypes.memset(block, 1, 64_000_000)
    libc.free(block)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how):
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, check=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_memory_that_was_freed_is_used_again_without_page_faults():
    faults = {how: page_faults(how) for how in ("plain", "keep")}
    assert faults["plain"] > 100  # 64 MB are 15,625 pages, or 30 huge ones
    assert faults["keep"] < faults["plain"] / 10
