"""How much memory this process holds; asked by heartbeats and by `gnl_worker --max-rss`."""

import os
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")


def rss_kib() -> int | None:
    """Return the resident memory in KiB: the present one on Linux, elsewhere the highest so far.

    None where the system tells neither.
    """
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return _highest()
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def _highest() -> int | None:
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:  # Windows
        return None
    most = getrusage(RUSAGE_SELF).ru_maxrss
    return most // 1024 if sys.platform == "darwin" else most
