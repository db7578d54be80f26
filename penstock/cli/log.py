"""`penstock log …`: run a log's server, look at it, check its files, trim it."""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.output import (
    EXIT_DAMAGED,
    bytes_text,
    error_text,
    show_fields,
    show_json,
    show_table,
    time_text,
)
from penstock.cli.target import Target, json_option, target_options
from penstock.config import ServerConfig
from penstock.errors import BadRequest, NotFound, Unavailable
from penstock.log.embedded import default_data_dir
from penstock.log.server.server import run_server
from penstock.log.serving.directory import Address, is_locked
from penstock.log.serving.process import EXIT_FATAL
from penstock.log.storage.disk import RealDisk
from penstock.log.storage.verify import Finding, VerifyReport, verify_log
from penstock.protocol.names import STAGING_PREFIX
from penstock.runtime.trim import find_trim_point
from penstock.stream.positions import parse_position, resolve_position
from penstock.stream.session import Log, connect

_FILE = click.Path(path_type=Path, dir_okay=False)
_DEFAULTS = {field.name: field.default for field in fields(ServerConfig)}
_LEVELS = click.Choice(["debug", "info", "warning", "error"])
#: A segment may be sealed while its file is checked; then the files are checked again.
_VERIFY_ATTEMPTS = 3


@click.group()
def log() -> None:
    """The shared log: serve it, look at it, check it, trim it."""


@log.command()
@click.option(
    "--dir",
    "data_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the log lives; made if it is not there.  [default: PENSTOCK_DIR, or the user's "
    "data directory]",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; beyond this machine only with TLS.",
)
@click.option("--port", type=int, default=7070, show_default=True, help="0 takes a free one.")
@click.option(
    "--tls-cert", type=_FILE, help="Certificate (PEM); with it the server speaks TLS only."
)
@click.option("--tls-key", type=_FILE, help="Its key (PEM).")
@click.option(
    "--segment-bytes",
    type=int,
    default=_DEFAULTS["segment_bytes"],
    show_default=True,
    help="A segment is sealed at this size.",
)
@click.option(
    "--segment-seconds",
    type=float,
    default=_DEFAULTS["segment_seconds"],
    show_default=True,
    help="... or at this age.",
)
@click.option(
    "--ttl-seconds",
    type=float,
    default=0.0,
    show_default=True,
    help="Older entries are trimmed, a segment at a time; 0 keeps everything.",
)
@click.option(
    "--cold-uri", help="Copy sealed segments there: any pyarrow.fs URI (file://, s3://, gs://)."
)
@click.option(
    "--local-bytes-max",
    type=int,
    default=_DEFAULTS["local_bytes_max"],
    show_default=True,
    help="Local bytes of sealed segments to keep once they have a cold copy.",
)
@click.option(
    "--idle-exit-seconds",
    type=float,
    default=0.0,
    show_default=True,
    help="Stop after so long without a client; 0 runs for ever.",
)
@click.option("--log-level", type=_LEVELS, default="info", show_default=True)
@json_option
def serve(data_dir: Path | None, log_level: str, as_json: bool, **settings: Any) -> None:
    """Run the server of a data directory until SIGTERM or Ctrl-C.

    Prints where it listens on standard output, then logs to standard error, one
    `time level logger message key=value` per line. Clients need the file `token` of the directory.

    \b
    Examples:
      penstock log serve --dir /var/lib/penstock
      penstock log serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key
    """
    directory = (data_dir or default_data_dir()).expanduser().absolute()
    config = ServerConfig(directory, **settings)
    _log_to_stderr(log_level)

    def announce(address: Address) -> None:
        url = f"penstock://{_host_text(address.host)}:{address.port}"
        token_file = str(directory / "token")
        if as_json:
            # One line, so that a supervisor can wait for it.
            click.echo(json.dumps({"url": url, "dir": str(directory), "token_file": token_file}))
        else:
            click.echo(f"listening on {url}, token in {token_file}")

    try:
        run_server(config, announce)
    except Unavailable as error:
        if error.__cause__ is None:
            raise
        # A write failed. The log is whole, but this process must not go on: start another.
        click.echo(error_text(error, as_json=as_json), err=True)
        click.get_current_context().exit(EXIT_FATAL)


def _host_text(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _log_to_stderr(level: str) -> None:
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])


@log.command()
@target_options
@json_option
def status(target: Target, as_json: bool) -> None:
    """Where the log stands: positions, segments, sizes, connections.

    \b
    Examples:
      penstock log status
      penstock log status --json | jq .tail
    """
    with target.open() as opened:
        found = opened.status()
    if as_json:
        show_json(found)
        return
    show_fields(
        [
            ("log", f"{found['log_id']} epoch {found['epoch']}"),
            ("directory", found.get("data_dir")),
            ("trim point", found["trim_point"]),
            ("tail", found["tail"]),
            ("last append", time_text(found["time_ms"]) if found["time_ms"] else None),
            ("size", bytes_text(found["bytes"])),
            ("metadata keys", found["metadata_keys"]),
            ("producers", found["producers"]),
            ("connections", found["connections"]),
            ("readers", f"{found['subscriptions']}, {found['subscriptions_behind']} behind"),
            ("server", f"pid {found['pid']}, up {found['uptime_seconds']:.0f} s"),
            ("peak memory", bytes_text(found["memory_peak_bytes"])),
        ]
    )
    click.echo()
    show_table(
        ["segment", "first lsn", "end lsn", "size", "state", "copies"],
        [
            (
                segment["id"],
                segment["base_lsn"],
                segment["end_lsn"],
                bytes_text(segment["bytes"]),
                "sealed" if segment["sealed"] else "open",
                "+".join(segment["copies"]) or None,
            )
            for segment in found["segments"]
        ],
    )


@log.command()
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@json_option
def verify(directory: Path | None, as_json: bool) -> None:
    """Read every byte of a log's files and say what is damaged, and where.

    DIR is a data directory; a server may be running on it. Exit code 8 if anything is damaged.

    \b
    Examples:
      penstock log verify
      penstock log verify /var/lib/penstock --json
    """
    data_dir = (directory or default_data_dir()).expanduser().absolute()
    if not (data_dir / "log").is_dir():
        raise NotFound(f"there is no log in {data_dir}")
    report = _verify(data_dir)
    if as_json:
        findings = [asdict(finding) for finding in report.findings]
        show_json(
            {
                "ok": not report.damaged,
                "files": report.files,
                "bytes": report.bytes,
                "entries": report.entries,
                "findings": findings,
            }
        )
    else:
        for finding in report.findings:
            click.echo(_finding_text(finding))
        verdict = "damage found" if report.damaged else "no damage"
        click.echo(
            f"{verdict}: {report.files} files, {bytes_text(report.bytes)}, {report.entries} entries"
        )
    if report.damaged:
        click.get_current_context().exit(EXIT_DAMAGED)


def _verify(data_dir: Path) -> VerifyReport:
    """Check the files; again, if the server sealed a segment under our eyes and it looks bad."""
    disk = RealDisk(data_dir / "log")
    console = Console(stderr=True)
    columns = (
        TextColumn("verifying"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("verify", total=None)

        def update(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        for _ in range(_VERIFY_ATTEMPTS):
            before = _open_segment(data_dir)
            report = verify_log(disk, durable_bytes=before[1] if before else None, progress=update)
            after = _open_segment(data_dir)
            if not report.damaged or (before and before[0]) == (after and after[0]):
                break
    return report


def _open_segment(data_dir: Path) -> tuple[int, int] | None:
    """Number and durable bytes of the segment that a live server writes; None without a server."""
    if not is_locked(data_dir):
        return None
    with connect(data_dir) as opened:
        newest = opened.status()["segments"][-1]
    return newest["id"], newest["bytes"]


def _finding_text(finding: Finding) -> str:
    lsn = "" if finding.lsn is None else f" lsn={finding.lsn}"
    return (
        f"{finding.severity} {finding.file} bytes={finding.start}..{finding.end} "
        f"structure={finding.structure.replace(' ', '-')}{lsn} {finding.problem}"
    )


@log.command()
@click.argument("lsn", required=False, type=click.IntRange(min=0))
@click.option("--before", metavar="TIME", help="Trim what was appended before this ISO time.")
@click.option("--consumed", is_flag=True, help="Trim what no query of the log needs any more.")
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

    With --consumed, LSN is the lowest that any query may read again, stopped ones included, and
    rows below it go in every stream, results too. Without queries nothing is trimmed.

    \b
    Examples:
      penstock log trim 120000 --dry-run
      penstock log trim --before 2026-11-01T00:00:00Z
      penstock log trim --consumed --dry-run
    """
    if (lsn is not None) + (before is not None) + consumed != 1:
        raise click.UsageError("give an LSN, --before TIME or --consumed")
    with target.open() as opened:
        found = opened.status()
        if consumed:
            wanted = int(opened.client.run(find_trim_point))
        else:
            wanted = lsn if lsn is not None else _lsn_before(opened, before or "")
        if wanted > found["tail"]:
            raise BadRequest(f"cannot trim at {wanted}: the tail is {found['tail']}")
        point = max(wanted, found["trim_point"])
        if not dry_run:
            point = int(opened.trim(wanted))
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
    click.echo(
        f"{'would trim' if dry_run else 'trimmed'} {result['entries']} entries, all below "
        f"LSN {point}; whole segments among them: {result['segments']}, "
        f"{bytes_text(result['bytes'])}"
    )


def _lsn_before(opened: Log, text: str) -> int:
    position = parse_position(text)
    if isinstance(position, int | str):
        raise BadRequest(f"--before {text}: use a time like 2026-11-15T08:00:00Z")
    return int(resolve_position(opened.client, position))


@log.command()
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
    with target.open() as opened:
        reservations = opened.client.list_metadata(STAGING_PREFIX)
        names = {key.removeprefix(STAGING_PREFIX): value for key, value in reservations.items()}
        if writer is not None:
            if writer not in names:
                raise NotFound(
                    f"no writer {writer} has staged rows; who has: {', '.join(names) or 'nobody'}"
                )
            key, reserved = STAGING_PREFIX + writer, names[writer].data
            opened.client.compare_and_set(key, expected=reserved, value=None)
    if as_json:
        show_json({"forgotten": writer, "writers": {name: names[name].lsn for name in names}})
    elif writer is not None:
        click.echo(f"forgot {writer}")
    else:
        show_table(["writer", "reserved at"], [[name, names[name].lsn] for name in names])
