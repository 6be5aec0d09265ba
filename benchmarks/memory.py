"""The memory that a step adds, in a process of its own: ``python -m benchmarks.memory WORKLOAD CONTENDER``.

It is the peak during the second and third step minus what was held before the first, when model, data and
optimizer already existed: activations, gradients and whatever is kept from step to step. Only anonymous
memory counts; the pages of libraries that the first step happens to load do not.
"""

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.contenders import CONTENDERS
from benchmarks.machine import cores
from benchmarks.workloads import WORKLOADS

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): resets VmHWM to the current size

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGE = 65536


class MemoryUnknown(Exception):
    """A step's memory could not be measured; the message says why."""


def measure(workload: str, contender: str) -> int:
    """The bytes that a step of this contender adds."""
    if not CLEAR_REFS.exists():
        raise MemoryUnknown("memory is measured through /proc, which only Linux has")
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", workload, contender],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode < 0:
        raise MemoryUnknown(f"ended by signal {-child.returncode}, most likely for want of memory")
    if child.returncode > 0:
        raise MemoryUnknown(child.stderr.strip().splitlines()[-1])
    return int(json.loads(child.stdout)["bytes"])


def added_by_a_step(workload: str, contender: str) -> int:
    """The bytes that a step of this contender adds in this process, which should do nothing else."""
    return_memory_at_once()
    torch.set_num_threads(cores())
    subject = CONTENDERS[contender](WORKLOADS[workload])
    subject.prepare()
    gc.collect()
    before = status("RssAnon")
    subject.step()
    peak = 0
    for _ in range(2):
        subject.prepare()
        CLEAR_REFS.write_text(RESET_PEAK)
        subject.step()
        # The kernel records one peak for all kinds of memory; mapped files do not shrink, so they come off.
        peak = max(peak, status("VmHWM") - status("RssFile") - status("RssShmem"))
    return peak - before


def return_memory_at_once() -> None:
    """Let malloc give freed tensors back to the system, so that the process is as large as what it uses."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, LARGE)
    libc.mallopt(M_TRIM_THRESHOLD, LARGE)


def status(field: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise MemoryUnknown(f"{STATUS} has no {field}")


if __name__ == "__main__":
    print(json.dumps({"bytes": added_by_a_step(*sys.argv[1:])}))
