"""A plugin of pytest: writes down which tests failed, for the closing lines of `tests.run`."""

import os
from pathlib import Path

import pytest

#: The environment variable that names the file.
FILE = "GNL_TEST_FAILED"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write a line for each test that failed, with the reason's first line."""
    lines = []
    for outcome in ("failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.splitlines()[0] if crash is not None else ""
            lines.append(f"{outcome.upper()} {report.nodeid} {reason}\n")
    Path(os.environ[FILE]).write_text("".join(lines))
