"""`penstock log status`: where a log stands."""

from __future__ import annotations

import json

import click

from penstock.cli.output import (
    bytes_text,
    echo,
    json_option,
    show_fields,
    show_json,
    show_table,
    time_text,
)
from penstock.cli.target import Target, target_options


@click.command()
@target_options
@json_option
def status(target: Target, as_json: bool) -> None:
    """Where the log stands: positions, segments, sizes, connections.

    \b
    Examples:
      penstock log status
      penstock log status --json | jq .tail
    """
    with target.open() as client:
        found = json.loads(client.status())
    if as_json:
        show_json(found)
        return
    why = found.get("stalled")  # of a log on a cluster; what to do is in it
    show_fields(
        [
            ("log", f"{found['log_id']} epoch {found['epoch']}"),
            *([("appends wait", why)] if why else []),
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
    echo()
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
