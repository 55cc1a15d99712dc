"""The small process between a private database server and the program that started it.

`testproject.servers` runs it as a script of its own (standard library only, it must start fast).
It starts the server under an ordinary user, prints the server's pid, and waits. When the program
that asked for the server ends in whatever way, SIGKILL included, the pipe on standard input
closes: the keeper then stops the server and removes the temporary directory. Should the keeper
itself be killed, the kernel kills the server with it. No server outlives its program.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1
PATIENCE = 10.0  # seconds an orphaned server has for its orderly end


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends (Linux; elsewhere a no-op)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(order: dict[str, object]) -> int:
    """Run the server that `order` describes until it ends; return its exit code.

    `command`: the server's argument list; `log`: file for its output; `user`, `group`: numbers of
    the ordinary user, or None; `signal`: ends it when orphaned; `remove`: directory to remove then.
    """
    command, log = order["command"], str(order["log"])
    assert isinstance(command, list)  # noqa: S101 - for the type checker
    identity = {}
    if order["user"] is not None:
        identity = {"user": order["user"], "group": order["group"], "extra_groups": []}
    with open(log, "ab") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=os.path.dirname(log),
            # Single-threaded here, so this is safe; it comes after the change of user, which
            # would have cleared the flag.
            preexec_fn=die_with_parent,
            **identity,  # type: ignore[call-overload]
        )
    print(server.pid, flush=True)
    orphaned = threading.Event()

    def watch() -> None:
        sys.stdin.buffer.read()  # returns when the last holder of the pipe's other end is gone
        orphaned.set()
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(int(str(order["signal"])))
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(PATIENCE)
            server.kill()

    threading.Thread(target=watch, daemon=True).start()
    code: int = server.wait()
    if orphaned.is_set() and order["remove"]:
        shutil.rmtree(str(order["remove"]), ignore_errors=True)
    # Without the interpreter's own ending: the watching thread holds the lock of standard input.
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
