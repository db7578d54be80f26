"""The files of the page itself, and what they may do in a browser.

Law: the page loads nothing from elsewhere and runs nothing but these files: no text of a log
becomes a script, a style or a link, whatever it holds.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from starlette.routing import Route

from penstock.gateway.endpoints import static

#: By path: the file below static/, and what it is.
ASSETS: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/parts.js": ("parts.js", "text/javascript; charset=utf-8"),
    "/graph.js": ("graph.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/streams.js": ("streams.js", "text/javascript; charset=utf-8"),
    "/feed.js": ("feed.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/vendor/preact.js": ("vendor/preact.js", "text/javascript; charset=utf-8"),
    "/vendor/uplot.js": ("vendor/uplot.js", "text/javascript; charset=utf-8"),
    "/vendor/uplot.css": ("vendor/uplot.css", "text/css; charset=utf-8"),
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
#: All that is served, in bytes.
ASSETS_BYTES_MAX: Final = 150_000


def read_asset(name: str) -> bytes:
    return files("penstock.ui").joinpath("static", name).read_bytes()


def asset_routes() -> list[Route]:
    return [static(path, read_asset(name), kind, POLICY) for path, (name, kind) in ASSETS.items()]
