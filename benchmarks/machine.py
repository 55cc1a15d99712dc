"""What the machine says: memory and CPU of processes, and how much of it others used.

Used by the measurements; nothing here touches a database. Figures of a process always mean the
process with all its descendants.
"""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]

MIB = 1024 * 1024


def tree(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants that are alive."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def alive(pid: int) -> bool:
    """Return whether the process runs; one that ended and was not waited for does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time that the trees of `pids` have used, with descendants already reaped."""
    total = 0.0
    for process in {process for pid in pids for process in tree(pid)}:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process tree, in MiB."""

    peak: float
    now: float


def memory(pid: int) -> Memory:
    """Return the memory of the tree of `pid`; the peak is the kernel's own high-water mark."""
    peak = now = 0.0
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, OSError):
            resident = process.memory_info().rss
            now += resident
            peak += _high_water(process.pid) or resident
    return Memory(peak=round(peak / MIB, 1), now=round(now / MIB, 1))


def _high_water(pid: int) -> int | None:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


class Foreign:
    """CPU used meanwhile by anything that is neither this run nor its server: the noise."""

    def __init__(self, server_pid: int | None) -> None:
        self._roots = [os.getpid(), *([server_pid] if server_pid else [])]
        self._busy, self._own = self._read()

    def _read(self) -> tuple[float, float]:
        times = psutil.cpu_times()
        return sum(times) - times.idle - getattr(times, "iowait", 0.0), cpu_seconds(self._roots)

    def seconds(self) -> float:
        """Return the CPU seconds of others since construction."""
        busy, own = self._read()
        return max(0.0, (busy - self._busy) - (own - self._own))


def facts() -> dict[str, object]:
    """Return what a reader needs to judge the figures."""
    return {
        "cores": os.cpu_count(),
        "memory_mib": psutil.virtual_memory().total // MIB,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": [round(value, 2) for value in os.getloadavg()],
    }
