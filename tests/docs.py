"""The examples of a page of docs/, written out as the project that they describe, and run."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "gnl_django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
USE_TZ = True
SECRET_KEY = "x"
"""


def examples(page: str) -> dict[str, str]:
    """Return a page's blocks of Python that name their file in the first line, by that name."""
    text = (ROOT / "docs" / page).read_text()
    return dict(re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL))


def run(directory: Path, files: Mapping[str, str], *arguments: str) -> str:
    """Run Python with `arguments` in a project of `files`; return its output, fail if it fails.

    The project has an app `shop` and, unless `files` has its own, settings on SQLite.
    """
    written = {"shop/__init__.py": "", "shop_settings.py": SETTINGS, **files}
    (directory / "shop").mkdir()
    for name, code in written.items():
        (directory / name).write_text(code)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "shop_settings",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pytest_in(directory: Path, files: Mapping[str, str]) -> str:
    """Run the project's tests; return what pytest prints."""
    return run(directory, files, "-m", "pytest", "-q", "-p", "no:cacheprovider")
