"""The page in tests: its server on a thread, Debian's Chromium, a page that is signed in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.http_gateway import serving_thread
from penstock.log.serving.directory import Address
from penstock.ui.config import UiConfig
from penstock.ui.server import UiServer

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
#: A busy machine draws slowly; in the end it does.
SECONDS = 60.0


def ui_thread(config: UiConfig) -> AbstractContextManager[Address]:
    """The page's server in this process."""
    return serving_thread(lambda announce: UiServer(config, announce))


@contextmanager
def browser(directory: Path, width: int = 1360, height: int = 900) -> Iterator[Any]:
    """A new browser with an empty profile in a directory; skips where there is none, but in CI."""
    if not shutil.which(CHROMIUM) and os.environ.get("CI") != "true":
        pytest.skip("Chromium is not installed (Debian: chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            directory / "profile", executable_path=CHROMIUM, args=FLAGS,
            viewport={"width": width, "height": height},
        )  # fmt: skip
        context.set_default_timeout(1000 * SECONDS)
        try:
            yield context
        finally:
            context.close()


class Watched:
    """A page of the browser, and what it did that it should not."""

    def __init__(self, context: Any, address: Address) -> None:
        self.page = context.new_page()
        self.url = f"http://127.0.0.1:{address.port}"
        #: Where it went, what it complained of.
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        # A refused request is told here by the browser itself.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def sign_in(self, token: str, path: str = "/") -> Any:
        self.page.goto(self.url + path)
        self.page.fill("#token", token)
        self.page.click("button[type=submit]")
        return self.page

    def check(self) -> None:
        """It asked nobody but its own server, and nothing failed in it."""
        assert self.complaints == []
        assert [each for each in self.requests if not each.startswith(self.url + "/")] == []


def keep_picture(page: Any, directory: Path, name: str, *, whole: bool = True) -> Path:
    """Where PENSTOCK_ARTEFACTS says, for whoever wants to look; else beside the test."""
    kept = Path(os.environ.get("PENSTOCK_ARTEFACTS") or directory)
    kept.mkdir(parents=True, exist_ok=True)
    path = kept / f"{name}.png"
    page.screenshot(path=path, full_page=whole)
    return path
