"""One event loop on a thread of its own, on which async handlers run side by side.

Used by the worker. Started when the first work comes; a batch costs one hop between threads, not
one a job.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

logger = logging.getLogger(__name__)

W = TypeVar("W")


class LoopThread(Generic[W]):
    """Runs the coroutine `run(item)` for each item of work until it ends by itself."""

    def __init__(self, run: Callable[[W], Coroutine[Any, Any, None]], *, name: str) -> None:
        self._run = run
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Loops that we have stopped ourselves.
        self._ended: set[asyncio.AbstractEventLoop] = set()

    def submit(self, items: Sequence[W]) -> None:
        """Hand over work, which starts in the order given; from any thread."""
        if not items:
            return
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            self._loop.call_soon_threadsafe(self._start, list(items))

    def close(self, *, patience: float = 0.0) -> None:
        """Let the thread end once its coroutines have ended; `submit` starts a new one.

        patience: seconds to wait for that, so that a process that ends next has closed the
        connection on which coroutines reach the database.
        """
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None:
            loop.call_soon_threadsafe(self._stop_when_done, loop)
        if thread not in {None, threading.current_thread()}:
            thread.join(patience)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while loop not in self._ended:
                try:
                    loop.run_forever()  # ends also by a handler that stops the loop: go on
                except BaseException:  # asyncio lets SystemExit of any task through
                    logger.exception("Something ended the loop of %s, which goes on", self._name)
        finally:
            self._ended.discard(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def _start(self, items: list[W]) -> None:
        loop = asyncio.get_running_loop()
        for item in items:
            self._tasks.add(loop.create_task(self._work(item)))

    async def _work(self, item: W) -> None:
        try:
            await self._run(item)
        finally:  # a callback of the task would be one more turn of the loop
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - we are in it
            self._tasks.discard(task)

    def _stop_when_done(self, loop: asyncio.AbstractEventLoop) -> None:
        mine = [task for task in self._tasks if task.get_loop() is loop]
        ending = loop.create_task(self._end(mine))
        ending.add_done_callback(lambda _: self._finish(loop))

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ended.add(loop)
        loop.stop()

    async def _end(self, tasks: list["asyncio.Task[None]"]) -> None:
        await asyncio.gather(*tasks, return_exceptions=True)
        # The thread in which coroutines reach the database outlives this loop.
        with suppress(RuntimeError):  # the process is ending, and that thread has
            await sync_to_async(connections.close_all)()


def cancel_from_anywhere(task: "asyncio.Task[Any]") -> None:
    """Cancel `task` of a loop that runs in another thread; a loop that has closed is no matter."""
    try:
        task.get_loop().call_soon_threadsafe(task.cancel)
    except RuntimeError:
        logger.debug("A task was to be canceled after its loop had closed")
