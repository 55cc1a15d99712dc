"""A real browser (Debian's chromium) on a real server, under a strict content policy.

A page that writes to the console, breaks the policy, fails a request or calls another host fails
its test.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.conf import settings as project
from django.test.utils import override_settings
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

FLAGS = ["--no-sandbox", "--disable-background-networking"]
expect.set_options(timeout=30_000)
OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Return the address of a server of the test project."""
    middleware = [*project.MIDDLEWARE, "tests.browser.csp.strict"]
    with override_settings(MIDDLEWARE=middleware):
        live = LiveServer("127.0.0.1")
        try:
            yield live.url
        finally:
            live.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Return a browser."""
    path = shutil.which("chromium")
    if path is None:
        missing = "chromium is not installed (Debian: apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # Playwright's loop runs in this thread, and Django would refuse to query beside it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def about(fault: str, url: str) -> list[str]:
    """Return a fault, unless it is none.

    Browsers ask for an icon that the project lacks, and give up an image that is still on its way
    when the test goes on to the next page.
    """
    given_up = "net::ERR_ABORTED" in fault and url.endswith((".svg", ".png"))
    return [] if given_up or url.endswith("/favicon.ico") else [f"{fault} ({url})"]


@pytest.fixture
def open_page(chromium: Browser, server: str, transactional_db: None) -> Iterator[OpenPage]:
    """Open pages: `open_page(width=390, dark=True)`; whatever goes wrong in one fails the test."""
    faults: list[str] = []
    with ExitStack() as stack:

        def new_page(width: int = 1280, height: int = 900, *, dark: bool = False) -> Page:
            context: Any = chromium.new_context(
                base_url=server,
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
            )
            stack.callback(context.close)
            page: Page = context.new_page()
            page.set_default_timeout(30_000)
            page.on("console", lambda m: faults.extend(about(m.text, m.location["url"])))
            page.on("pageerror", lambda error: faults.append(f"error: {error}"))
            page.on("requestfailed", lambda r: faults.extend(about(f"failed: {r.failure}", r.url)))
            page.on(
                "request",
                lambda r: r.url.startswith((server, "data:")) or faults.append(f"host: {r.url}"),
            )
            return page

        yield new_page
    assert not faults
