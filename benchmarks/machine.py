"""What the figures were taken on, and what the machine has left."""

import os
import platform
from importlib import metadata
from pathlib import Path

import torch


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """How many processes want a core, averaged over the last minute."""
    return os.getloadavg()[0]


def free_memory() -> int | None:
    """Bytes that can be taken without swapping; None where the system does not say."""
    kilobytes = _field("/proc/meminfo", "MemAvailable")
    return int(kilobytes.split()[0]) * 1024 if kilobytes else None


def describe() -> dict[str, object]:
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "load": round(load(), 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "opacus": _version("opacus"),
        "hoarfrost": _version("hoarfrost"),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _field(file: str, name: str) -> str | None:
    """The value of the first line `name: value`."""
    if not Path(file).exists():
        return None
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
