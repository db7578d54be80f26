"""`GET /metrics` on a port of this machine, for a process that is no server.

Owns one thread, which answers one request after the other. Law: nobody gets an answer without the
log's token, and nobody beyond this machine can ask.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final

from penstock.errors import BadConfig

_HOST: Final = "127.0.0.1"
#: Who asks and then says nothing is not waited for.
_REQUEST_SECONDS: Final = 5.0


@contextmanager
def serve_metrics(port: int, token: str, text: Callable[[], str]) -> Iterator[int]:
    """Until the end of the `with`; 0 takes a free port. Yields the port."""
    wanted = f"bearer {token}".encode()

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_SECONDS

        def do_GET(self) -> None:
            shown = self.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(shown[:7].lower() + shown[7:], wanted):
                self._answer(401, "send the log's token: Authorization: Bearer TOKEN\n")
            elif self.path != "/metrics":
                self._answer(404, "only /metrics is here\n")
            else:
                self._answer(200, text())

        def _answer(self, status: int, body: str) -> None:
            data = body.encode()
            self.send_response(status)
            kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing: standard error has the live line."""

    try:
        server = HTTPServer((_HOST, port), Handler)
    except OSError as error:
        raise BadConfig(f"--metrics-port {port}: {error.strerror}; take another, or 0") from error
    thread = threading.Thread(target=server.serve_forever, name="penstock-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
