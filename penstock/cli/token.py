"""`penstock token …`: make and narrow tokens, look at them, take them back.

Owns the commands' forms. What a token is made of is wire/token.py's business, what it allows
log/core/rights.py's. Law: no token is an argument, and a file with one has mode 0600.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.cli.output import echo, json_option, show_fields, show_json, time_text
from penstock.cli.target import Target, target_options
from penstock.errors import AlreadyExists, BadRequest
from penstock.log.core.owners import revoked_key
from penstock.log.core.rights import allow_caveat, log_caveat, read_rights, until_caveat
from penstock.log.records import SetKey
from penstock.log.serving.directory import make_secret, read_token
from penstock.stream.times import to_time_ms
from penstock.wire.token import ID_LETTERS, is_narrowed, make_token, narrow_token, split_token

F = TypeVar("F", bound=Callable[..., Any])
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_STDIN: Final = "-"


def _caveat_options(command: F) -> F:
    for option in (
        click.option(
            "--out",
            type=click.Path(path_type=Path, dir_okay=False),
            help="A new file for the token, mode 0600.  [default: standard output]",
        ),
        click.option(
            "--log",
            "logs",
            metavar="LOG",
            multiple=True,
            help="Only this log: its name on a cluster, else its id (`penstock log status`).",
        ),
        click.option("--until", metavar="TIME", help="Until then, as an ISO time."),
        click.option("--for", "lasting", metavar="TIME", help="For so long: 90s, 15m, 12h, 30d."),
        click.option(
            "--allow",
            "rights",
            metavar="RIGHT",
            multiple=True,
            help="append:STREAM, read:STREAM, run:QUERY, deliver:DELIVERY, metrics or admin; again "
            "for more. A name may end in *.  [default: everything]",
        ),
    ):
        command = option(command)
    return command


@click.group()
def token() -> None:
    """Tokens that allow less than everything: make, narrow, show, revoke.

    Every server has a root token, which allows everything. From it come tokens with an id of their
    own, and from those narrower ones: this needs no server, and nobody can make one wider again.
    """


@token.command()
@_caveat_options
@target_options
@json_option
def make(
    rights: Sequence[str],
    lasting: str | None,
    until: str | None,
    logs: Sequence[str],
    out: Path | None,
    target: Target,
    as_json: bool,
) -> None:
    """Make a token from the log's root token.

    Connects to nothing. The id that is printed is what `penstock token revoke` takes.

    \b
    Examples:
      penstock token make --allow append:bids --for 30d --out till.token
      penstock token make --allow read:bids --allow 'read:bids_*' > reader.token
      penstock token make --allow metrics --out prometheus.token
      penstock token make --connect penstock://log:7070 --token-file root.token --allow admin
    """
    caveats = _caveats(rights, lasting, until, logs)
    made = make_token(target.token(), secrets.token_hex(ID_LETTERS // 2), caveats)
    _hand_over(made, out, as_json=as_json)


@token.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@_caveat_options
@json_option
def narrow(
    file: str,
    rights: Sequence[str],
    lasting: str | None,
    until: str | None,
    logs: Sequence[str],
    out: Path | None,
    as_json: bool,
) -> None:
    """Make a token that allows less than the one in FILE (-: standard input).

    What it allows is what both the old token and the options allow. It keeps the id: whoever
    revokes the one revokes the other.

    \b
    Examples:
      penstock token narrow team.token --allow append:bids --out till.token
      penstock token narrow - --for 1h < team.token
    """
    caveats = _caveats(rights, lasting, until, logs)
    if not caveats:
        raise click.UsageError("give --allow, --for, --until or --log: nothing would be narrower")
    shown = _read(file)
    if not is_narrowed(shown):
        raise BadRequest(f"{file} has a root token: use `penstock token make`, which gives an id")
    _hand_over(narrow_token(shown, caveats), out, as_json=as_json)


@token.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@json_option
def show(file: str, as_json: bool) -> None:
    """Say what the token in FILE (-: standard input) allows, and not the token itself.

    Whether it is genuine, and not revoked, only its server knows.

    \b
    Examples:
      penstock token show till.token
      penstock token show - --json < till.token
    """
    facts = _facts(_read(file))
    if as_json:
        show_json(facts)
        return
    until = facts["until"]
    show_fields(
        [
            ("id", facts["id"]),
            # Each is a narrowing of the one before: what all of them allow.
            (
                "allows",
                "\nand only ".join(" ".join(each) for each in facts["allow"]) or "everything",
            ),
            ("log", ", ".join(facts["logs"]) or "any"),
            ("until", until and f"{until}{' (expired)' if facts['expired'] else ''}"),
        ]
    )


@token.command()
@click.argument("id")
@target_options
@json_option
def revoke(id: str, target: Target, as_json: bool) -> None:
    """Take back the token with this ID, and all that were narrowed from it, for good.

    Whoever is connected with one is cut off within five seconds. It counts in this log: on a
    cluster, repeat it for each log that the token is for. The root token cannot be revoked.

    \b
    Examples:
      penstock token revoke 9f1c2d3e4b5a6978
      penstock token revoke 9f1c2d3e4b5a6978 --connect penstock://zk:2181/logs/orders --json
    """
    if not re.fullmatch(rf"[0-9a-f]{{{ID_LETTERS}}}", id):
        raise BadRequest(
            f"{id!r} is no id of a token: {ID_LETTERS} hexadecimal digits, which "
            "`penstock token show` shows"
        )
    key = revoked_key(id)
    with target.open() as client:
        known = client.get(key)
        if known is None:
            value = json.dumps({"format": 1, "time_ms": time.time_ns() // 1_000_000}).encode()
            client.append([], sets=[SetKey(key, value)])
    if as_json:
        show_json({"id": id, "revoked": True, "was_revoked": known is not None})
    else:
        echo(f"token {id} {'was revoked before' if known is not None else 'is revoked'}")


def _caveats(
    rights: Sequence[str], lasting: str | None, until: str | None, logs: Sequence[str]
) -> list[str]:
    if lasting is not None and until is not None:
        raise click.UsageError("give --for or --until, not both")
    caveats = [log_caveat(log) for log in logs]
    if lasting is not None:
        match = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", lasting)
        if match is None:
            raise BadRequest(f"--for {lasting}: use a number and s, m, h or d, such as 30d")
        seconds = int(match[1]) * _SECONDS[match[2]]
        caveats.append(until_caveat(time.time_ns() // 1_000_000 + seconds * 1000))
    if until is not None:
        try:
            until_ms = to_time_ms(datetime.fromisoformat(until))
        except ValueError:
            raise BadRequest(f"--until {until}: use a time like 2026-12-31T00:00:00Z") from None
        if until_ms <= time.time_ns() // 1_000_000:
            raise BadRequest(f"--until {until} is over: use a time to come (UTC if it has no zone)")
        caveats.append(until_caveat(until_ms))
    if rights:
        caveats.append(allow_caveat(rights))
    return caveats


def _read(file: str) -> str:
    return sys.stdin.read().strip() if file == _STDIN else read_token(Path(file))


def _hand_over(made: str, out: Path | None, *, as_json: bool) -> None:
    facts = _facts(made)
    if out is not None:
        if out.exists():
            raise AlreadyExists(f"{out} exists: name a new file")
        make_secret(out, made)
    if as_json:
        show_json({**facts, "file": str(out)} if out is not None else {**facts, "token": made})
    elif out is not None:
        echo(f"made token {facts['id']} in {out}")
    else:
        echo(made)
        echo(f"made token {facts['id']}", err=True)


def _facts(shown: str) -> dict[str, Any]:
    """For people and programs; raises BadRequest for what is no token."""
    if not is_narrowed(shown):
        return {"id": None, "allow": [], "logs": [], "until": None, "expired": False}
    chain, _ = split_token(shown)
    rights = read_rights(chain)
    return {
        "id": chain.id,
        "allow": [each.text.split(" ") for each in rights.allowed],
        "logs": list(rights.logs),
        "until": None if rights.until_ms is None else time_text(rights.until_ms),
        "expired": rights.is_over(time.time_ns() // 1_000_000),
    }
