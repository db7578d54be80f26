"""`penstock demo --ui`: the page of the demo's log, opened in a browser."""

from __future__ import annotations

import contextlib
import secrets
import threading
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.cli.demo_view import View
from penstock.cli.serving_options import load
from penstock.log.core.rights import allow_caveat
from penstock.log.serving.directory import TOKEN_FILE, read_token
from penstock.wire.token import make_token

#: What the page may do with the demo's log: look at everything, stop its query.
RIGHTS = ("metrics", "read:*", "run:*")


@contextlib.contextmanager
def show_page(data_dir: Path, view: View) -> Iterator[Callable[[], None]]:
    """Yields what waits for Ctrl-C."""
    beside, config = load("penstock.ui.beside", "penstock.ui.config")
    root = read_token(data_dir / TOKEN_FILE)
    token = make_token(root, secrets.token_hex(8), [allow_caveat(RIGHTS)])
    with beside.page_beside(config.UiConfig(target=str(data_dir), port=0), token) as url:
        opened = webbrowser.open(url)
        view.say(f"the page: {url if not opened else url.partition('#')[0]}")

        def wait() -> None:
            view.say("the page stays until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()

        yield wait
