"""`penstock log trim` and `forget`: give up what nobody needs any more."""

from __future__ import annotations

import json

import click

from penstock.cli.output import bytes_text, echo, json_option, show_json, show_table
from penstock.cli.target import Target, target_options
from penstock.errors import BadRequest, NotFound
from penstock.ids import Lsn
from penstock.log.client.blocking import BlockingLog
from penstock.protocol.names import STAGING_PREFIX
from penstock.runtime.trim import find_trim_point, trim_consumed
from penstock.stream.positions import parse_position, resolve_position


@click.command()
@click.argument("lsn", required=False, type=click.IntRange(min=0))
@click.option("--before", metavar="TIME", help="Trim what was appended before this ISO time.")
@click.option(
    "--consumed", is_flag=True, help="Trim what no query and no delivery of the log needs."
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@target_options
@json_option
def trim(
    lsn: int | None,
    before: str | None,
    consumed: bool,
    dry_run: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Give up everything below LSN, in all streams and for good.

    With --consumed, LSN is the lowest that any query or delivery may read again, stopped ones
    included, and rows below it go in every stream, results too. Without queries nothing is trimmed.

    \b
    Examples:
      penstock log trim 120000 --dry-run
      penstock log trim --before 2026-11-01T00:00:00Z
      penstock log trim --consumed --dry-run
    """
    if (lsn is not None) + (before is not None) + consumed != 1:
        raise click.UsageError("give an LSN, --before TIME or --consumed")
    with target.open() as client:
        found = json.loads(client.status())
        if consumed:
            wanted = int(client.run(find_trim_point))
        else:
            wanted = lsn if lsn is not None else _lsn_before(client, before or "")
        if wanted > found["tail"]:
            raise BadRequest(f"cannot trim at {wanted}: the tail is {found['tail']}")
        point = max(wanted, found["trim_point"])
        if not dry_run and consumed:
            point = int(client.run(trim_consumed))
        elif not dry_run:
            point = int(client.trim(Lsn(wanted)))
    gone = [each for each in found["segments"] if each["sealed"] and each["end_lsn"] <= point]
    result = {
        "dry_run": dry_run,
        "trim_point": point,
        "entries": point - found["trim_point"],
        "segments": len(gone),
        "bytes": sum(each["bytes"] for each in gone),
    }
    if as_json:
        show_json(result)
        return
    echo(
        f"{'would trim' if dry_run else 'trimmed'} {result['entries']} entries, all below "
        f"LSN {point}; whole segments among them: {result['segments']}, "
        f"{bytes_text(result['bytes'])}"
    )


def _lsn_before(client: BlockingLog, text: str) -> int:
    position = parse_position(text)
    if isinstance(position, int | str):
        raise BadRequest(f"--before {text}: use a time like 2026-11-15T08:00:00Z")
    return int(resolve_position(client, position))


@click.command()
@click.argument("writer", required=False)
@target_options
@json_option
def forget(writer: str | None, target: Target, as_json: bool) -> None:
    """Give up what WRITER staged and did not commit; without WRITER, list who has such rows.

    What a micro-batch query or batch write of Spark has staged is not trimmed, so a writer that
    died inside a batch stops trimming at that place until it comes back. A writer that is forgotten
    and comes back all the same writes its batch again.

    \b
    Examples:
      penstock log forget
      penstock log forget 9f1c2d3e4b5a69788796a5b4c3d2e1f0.0
    """
    with target.open() as client:
        reservations = client.list_metadata(STAGING_PREFIX)
        names = {key.removeprefix(STAGING_PREFIX): value for key, value in reservations.items()}
        if writer is not None:
            if writer not in names:
                raise NotFound(
                    f"no writer {writer} has staged rows; who has: {', '.join(names) or 'nobody'}"
                )
            key, reserved = STAGING_PREFIX + writer, names[writer].data
            client.compare_and_set(key, expected=reserved, value=None)
    if as_json:
        show_json({"forgotten": writer, "writers": {name: names[name].lsn for name in names}})
    elif writer is not None:
        echo(f"forgot {writer}")
    else:
        show_table(["writer", "reserved at"], [[name, names[name].lsn] for name in names])
