"""Runs the demo from start to end: database, operator, work, children, progress, summary.

Exit codes: 0 all well; 1 something broke (the worker ended, jobs were lost or stood still);
2 an option is wrong; 130 interrupted with ONCE=1 before the queue was empty.
"""

import os
import signal
import sys
import threading
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console

from testproject.demo.children import HOST, WORKER_GRACE, Children, answers, choose_port
from testproject.demo.database import database
from testproject.demo.options import BadOption, Options
from testproject.private_server import ServerError

if TYPE_CHECKING:
    from testproject.demo.progress import Display
    from testproject.demo.work import Run
    from testproject.library.sources import Source

LOOK_EVERY = 0.5  # seconds
ASK_EVERY = 0.1  # seconds
WEB_TIMEOUT = 30.0  # seconds for the web server to answer
STILL_TIMEOUT = 120.0  # four leases: longer than any recovery of a healthy queue
BROKEN, BAD_OPTION, INTERRUPTED = 1, 2, 130


class Broken(Exception):
    """The demo cannot go on; the text says what broke."""


class Demo:
    """One run of the demo. Its steps are its methods, in the order in which `run` calls them."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options = options
        self.console = console
        self.stopped = threading.Event()
        #: What the agent said of the documents, as one line of the summary.
        self.answer = ""

    def run(self) -> int:
        """Do all of it and return the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *unused: self.stopped.set())
        self.options.directory.mkdir(parents=True, exist_ok=True)
        with database(self.options) as where:
            self.say(f"Database: {where}")
            environ = {**os.environ, "PYTHONWARNINGS": "ignore::SyntaxWarning"}
            with Children(self.options.directory, environ) as children:
                return self.work(children)

    def work(self, children: Children) -> int:
        """Enqueue, start the children, watch them, add up."""
        # Models can be imported only now that Django is set up.
        from testproject.demo.progress import Display
        from testproject.demo.work import OPERATOR, make_operator

        login = f"user {OPERATOR}, password {make_operator()}"
        sources = self.sources()
        run = self.enqueue(sources)
        children.start(
            *("worker", "gnl_worker", "--name", "demo", "--grace", str(WORKER_GRACE)),
            *("--concurrency", str(self.options.concurrency)),
        )
        footer = ""
        if self.options.once:
            self.say(f"Operator: {login}")
        else:
            footer = f"Admin: {self.start_web(children)} ({login}). Ctrl-C ends the demo."
            self.say(footer)
        paths = [source.path for source in sources]
        with Display(self.console, run, footer) as display:
            empty = self.watch(children, run, paths, display)
        return self.finish(children, run, paths, empty)

    def sources(self) -> "list[Source]":
        """Return the files of this run."""
        from testproject.library.sources import find_sources, sample

        found = find_sources()
        if not found:
            raise Broken("no installed source file was found")
        sources = sample(found, self.options.limit)
        self.say(f"Found {len(found)} installed source files, {len(sources)} of them for this run")
        return sources

    def enqueue(self, sources: "list[Source]") -> "Run":
        """Enqueue the run's jobs."""
        from testproject.demo.work import enqueue_sources, older_jobs

        began = monotonic()
        run = enqueue_sources(sources)
        self.say(
            f"Enqueued {run.jobs} jobs of {len(run.sizes)} organizations "
            f"in {monotonic() - began:.2f} s"
        )
        if older := older_jobs(run):
            self.say(f"Before them {older} jobs of an interrupted run are waiting; they come first")
        return run

    def start_web(self, children: Children) -> str:
        """Start the web server and return the admin's address when it answers."""
        port = choose_port(self.options.port)
        # --insecure: the admin's style sheets, which runserver serves with DEBUG only.
        children.start("web", "runserver", "--noreload", "--insecure", f"{HOST}:{port}")
        deadline = monotonic() + WEB_TIMEOUT
        while not answers(port) and not self.stopped.wait(0.1):
            check(children)
            if monotonic() > deadline:
                raise Broken(f"the web server does not answer:\n{children.tail('web')}")
        return f"http://{HOST}:{port}/admin/"

    def watch(self, children: Children, run: "Run", paths: list[str], display: "Display") -> bool:
        """Show the progress until the end; return True when the queue was empty.

        The end is Ctrl-C, and with ONCE=1 also the empty queue.
        """
        from testproject.demo import progress, summary

        counts, moved, empty = None, monotonic(), False
        while not self.stopped.wait(LOOK_EVERY):
            check(children)
            before, counts = counts, progress.count(run)
            display.show(counts)
            if counts != before:
                moved = monotonic()
            if not counts.waiting:
                if not empty:
                    self.answer = self.ask(children, run)
                if self.options.once:
                    return True
                if not empty:
                    summary.show(self.console, summary.collect(run, paths), self.answer)
                empty = True
            elif self.options.once and monotonic() - moved > STILL_TIMEOUT:
                raise Broken(f"no job has moved for {STILL_TIMEOUT:.0f} s: {counts.states}")
        return empty

    def ask(self, children: Children, run: "Run") -> str:
        """Put the question about what was indexed to the agent; return its answer as a line."""
        from testproject.demo import question

        job_id, deadline = question.put(run), monotonic() + STILL_TIMEOUT
        while not self.stopped.wait(ASK_EVERY):
            check(children)
            try:
                line = question.answer(job_id)
            except question.NoAnswer as error:
                raise Broken(str(error)) from None
            if line:
                return line
            if monotonic() > deadline:
                raise Broken(f"nobody has answered the question for {STILL_TIMEOUT:.0f} s")
        return ""

    def finish(self, children: Children, run: "Run", paths: list[str], empty: bool) -> int:
        """End the children, and with ONCE=1 print the summary; return the exit code."""
        from testproject.demo import summary

        if not empty or not self.options.once:
            self.say("Stopping ...")
        code = children.stop().get("worker")
        # An interrupted worker may not have come to its own handling of SIGTERM.
        if code not in ((0,) if empty else (0, -signal.SIGTERM)):
            raise Broken(f"the worker ended with {code}:\n{children.tail('worker')}")
        if not self.options.once:
            return 0
        result = summary.collect(run, paths)
        summary.show(self.console, result, self.answer)
        if not empty:
            return INTERRUPTED
        if result.lost:
            raise Broken(f"{result.lost} jobs were lost")
        return 0

    def say(self, text: str) -> None:
        """Print one line of plain text."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def check(children: Children) -> None:
    """Raise Broken when a child has ended by itself."""
    for name, code in children.ended().items():
        raise Broken(f"the child {name} ended with {code}:\n{children.tail(name)}")


def main() -> int:
    """Read the options, run the demo, return the exit code."""
    try:
        options = Options.read(os.environ)
    except BadOption as error:
        sys.stderr.write(f"{error}\n")
        return BAD_OPTION
    try:
        return Demo(options, Console()).run()
    except (Broken, ServerError) as error:
        sys.stderr.write(f"The demo broke: {error}\n")
        return BROKEN


if __name__ == "__main__":
    sys.exit(main())
