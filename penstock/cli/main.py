"""The root of the command line.

Owns how every command ends: its own exit code, or that of its error's class (output.py), with one
line on standard error. Law: standard output carries what was asked for and nothing else.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import IO, TYPE_CHECKING, Any

import click

from penstock import __version__
from penstock.cli.groups import LazyGroup, Place
from penstock.cli.output import EXIT_INTERRUPTED, echo, error_text, exit_code
from penstock.errors import Defect, PenstockError
from penstock.plain_text import plain

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

#: Each is in the module of its name, unless another one is named below.
COMMANDS = {
    "cluster": "A replicated log: storage nodes, proxies, and how they are.",
    "deliver": "Keep a table equal to a stream, or to a query's result, until Ctrl-C.",
    "delivery": "Deliveries to databases: how they stand, change their targets, forget them.",
    "demo": "Watch a query on Spark in real time, through two kills (needs Java).",
    "explain": "Say what the entry at LSN is and who wrote it.",
    "gateway": "Serve a log over HTTP, and to Kafka's clients: for any language.",
    "log": "The shared log: serve it, look at it, check it, trim it.",
    "plan": "Look at queries before they run.",
    "query": "Queries on the log: how they stand, stop them, forget them.",
    "state": "What queries keep: how much, where, and for one key.",
    "stream": "Streams of typed rows: create, append, read, follow.",
    "target": "Targets of deliveries, in processes of their own.",
    "token": "Tokens that allow less than everything: make, narrow, show, revoke.",
    "ui": "Serve a page that shows everything that runs on a log, live.",
}
#: target.py says which log a command is for.
_MODULES = {"target": "target_host"}
#: Commands of the benchmark package, which is not installed with Penstock.
BENCHMARK_COMMANDS = {
    "bench": "Measure what we claim, beside the raw disk or a peer, in one run.",
    "nexmark": "NEXMark: an auction site as a benchmark, its queries and their figures.",
}
#: Where packages beside this one name their commands (bench/pyproject.toml).
COMMANDS_BESIDE = "penstock.commands"


def commands_beside() -> EntryPoints:
    """What other packages bring; who asks for one of our own need not load what looks for them."""
    from importlib.metadata import entry_points

    return entry_points(group=COMMANDS_BESIDE)


class CommandFailed(click.ClickException):
    """An error on its way to standard error and the exit code."""

    def __init__(self, error: BaseException, *, as_json: bool) -> None:
        super().__init__(str(error))
        self.exit_code = exit_code(error)  # type: ignore[misc]
        self._text = error_text(error, as_json=as_json)

    def show(self, file: IO[Any] | None = None) -> None:
        echo(self._text, file=file, err=True)


class Root(LazyGroup):
    """The group `penstock`: errors of all commands end here.

    Commands of packages beside this one are found by name, too: no other fails with them.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["as_json"] = "--json" in args
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        beside = commands_beside().names
        return sorted({*super().list_commands(ctx), *beside})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        command = super().get_command(ctx, name)
        if command is not None:
            return command
        for entry in commands_beside().select(name=name):
            loaded: click.Command = entry.load()
            return loaded
        if name in BENCHMARK_COMMANDS:
            raise click.UsageError(
                f"`penstock {name}` is in the package penstock-bench, which is not installed here. "
                "In a checkout of Penstock, run `pip install -e ./bench` (or `make install`)."
            )
        return None

    def summary(self, ctx: click.Context, name: str) -> str:
        if name in COMMANDS:
            return super().summary(ctx, name)
        return BENCHMARK_COMMANDS.get(name, "Of a package beside this one.")

    def invoke(self, ctx: click.Context) -> Any:
        as_json: bool = ctx.meta["as_json"]
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if not as_json:
                error.message = plain(error.message)  # type: ignore[misc]
                raise
            raise CommandFailed(error, as_json=True) from error
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            _abandon_stdout()  # whoever read from us has had enough
            ctx.exit(0)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except Exception as error:
            if not isinstance(error, PenstockError | OSError) or isinstance(error, Defect):
                echo(
                    traceback.format_exc(), err=True, nl=False
                )  # our bug: the report needs to say where
            raise CommandFailed(error, as_json=as_json) from error


def _abandon_stdout() -> None:
    """Let what is left in the buffer go nowhere, or Python would complain at its exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except io.UnsupportedOperation:
        pass  # not a real file


@click.group(
    cls=Root,
    places={
        name: Place(f"penstock.cli.{_MODULES.get(name, name)}", said)
        for name, said in COMMANDS.items()
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Exactly-once stream processing for PySpark over one shared log.

    Exit codes: 0 done, 1 unexpected, 2 wrong usage, 3 refused, 4 unauthorized, 5 no server or
    busy (try again), 6 unknown whether done, 7 fenced by somebody newer, 8 damaged data.

    \b
    Examples:
      penstock demo
      penstock stream create bids 'auction long, price long, ts timestamp'
      echo '{"auction": 1, "price": 250}' | penstock stream append bids
      penstock stream tail bids --start earliest
      penstock log status --json
      penstock cluster up
      penstock query status hot --watch
      penstock deliver --query hot --to postgresql://me@localhost/shop
      penstock gateway --dir /var/lib/penstock
      penstock plan explain pipeline.py:hot_items
      penstock token make --allow append:bids --out till.token
      penstock ui --open
    """


def main() -> None:
    cli(prog_name="penstock")


if __name__ == "__main__":
    main()
