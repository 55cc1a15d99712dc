"""Run a command that the kernel ends when the benchmark dies, however it dies.

`python -m benchmarks.tether COMMAND ..` replaces itself with COMMAND, so the process id stays and
signals reach the command. Where the kernel has no such call (not Linux) it only runs the command.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> None:
    """Ask for SIGKILL at the parent's death, then become `command`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execvp(command[0], command)  # noqa: S606 - the command is the benchmark's own


if __name__ == "__main__":
    main(sys.argv[1:])
