"""`penstock log verify`: read every byte of a log's files, and say what is damaged."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.output import EXIT_DAMAGED, bytes_text, echo, json_option, show_json
from penstock.errors import NotFound
from penstock.log.client.blocking import BlockingLog
from penstock.log.directories import default_data_dir
from penstock.log.embedded import directory_endpoint
from penstock.log.serving.directory import is_locked
from penstock.log.storage.disk import RealDisk
from penstock.log.storage.verify import Finding, VerifyReport, verify_log

#: A segment may be sealed while its file is checked; then the files are checked again.
_VERIFY_ATTEMPTS = 3


@click.command()
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
            echo(_finding_text(finding))
        verdict = "damage found" if report.damaged else "no damage"
        echo(
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
    with BlockingLog(directory_endpoint(data_dir)) as client:
        newest = json.loads(client.status())["segments"][-1]
    return newest["id"], newest["bytes"]


def _finding_text(finding: Finding) -> str:
    lsn = "" if finding.lsn is None else f" lsn={finding.lsn}"
    return (
        f"{finding.severity} {finding.file} bytes={finding.start}..{finding.end} "
        f"structure={finding.structure.replace(' ', '-')}{lsn} {finding.problem}"
    )
