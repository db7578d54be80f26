"""`penstock ui`: a page that shows everything that runs on a log, live."""

from __future__ import annotations

import webbrowser

import click

from penstock.cli.output import echo, json_option, show_json_line
from penstock.cli.serving_options import Serving, load, serving_options
from penstock.log.serving.directory import Address, url_of


@click.command()
@serving_options(port=8090, timeout=5.0, starts=False)
@click.option("--open", "opens", is_flag=True, help="Open it in a browser of this machine.")
@json_option
def ui(serving: Serving, opens: bool, as_json: bool) -> None:
    """Serve a page that shows everything that runs on a log, live.

    Until SIGTERM or Ctrl-C. Prints the page's address on standard output, then logs to standard
    error. It has no token of its own: the page asks for one, once, and the log decides what is
    shown and what may be asked for. A log that is down is shown as down, and is not started.
    Nodes of a cluster are asked if PENSTOCK_NODE_TOKEN_FILE names their token.

    \b
    Examples:
      penstock ui --open
      penstock ui --dir /var/lib/penstock --listen 127.0.0.1:8091
      penstock ui --connect penstock://localhost:7070
      penstock ui --listen 0.0.0.0:443 --tls-cert page.pem --tls-key page.key
    """
    settings = serving.begin()
    config, server = load("penstock.ui.config", "penstock.ui.server")

    def announce(found: Address) -> None:
        url = url_of(found)
        if as_json:
            show_json_line({"url": url})
        else:
            echo(f"the page is at {url}")
        if opens:
            webbrowser.open(url)

    server.run_ui(config.UiConfig(**settings), announce)
