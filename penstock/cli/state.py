"""`penstock state …`: what queries keep, as it was committed; nothing of it is changed.

Owns the command and its words; the facts are read from the log and from checkpoints
(runtime/committed_state.py), whether the query runs or not.
"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.output import bytes_text, echo, json_option, show_json, show_table
from penstock.cli.query_facts import find_query
from penstock.cli.target import Target, target_options


@click.group()
def state() -> None:
    """What queries keep: how much, where, and for one key."""


@state.command()
@click.argument("name")
@click.option(
    "--key",
    metavar="VALUE",
    help="What is kept for one key: its value as JSON, or an object of its columns.",
)
@click.option("--nodes", is_flag=True, help="Rows by virtual node, too.")
@target_options
@json_option
def show(name: str, key: str | None, nodes: bool, target: Target, as_json: bool) -> None:
    """What the tasks of query NAME keep, and what a restore of it would read.

    Rows are those of the newest checkpoint's files: a row that later files replace counts in each.
    With --key: the rows of this key at the last commit, in all tables that have such keys.

    \b
    Examples:
      penstock state show hot
      penstock state show hot --nodes --json
      penstock state show hot --key 17
      penstock state show hot --key '{"auction": 17, "bidder": "ada"}' --json
    """
    from penstock.runtime import committed_state  # Arrow, which other commands need not load

    with target.open() as client:
        found = find_query(client, name)
        if key is not None:
            rows = committed_state.find_key(client, found.registered, key)
            _show_rows(rows, key, as_json=as_json)
            return
        tasks = committed_state.task_facts(client, found.registered)
    if as_json:
        show_json({"query": name, "tasks": tasks})
        return
    _show_tasks(tasks, nodes=nodes)


def _show_rows(rows: list[dict[str, Any]], key: str, *, as_json: bool) -> None:
    if as_json:
        show_json(rows)
        return
    if not rows:
        echo(f"nothing is kept for {key}")
        return
    show_table(
        ["task", "part", "weight", "row"],
        [(one["task"], one["part"], one["weight"], one["text"]) for one in rows],
    )


def _show_tasks(tasks: list[dict[str, Any]], *, nodes: bool) -> None:
    show_table(
        ["task", "checkpoint at", "files", "restore reads", "then changes", "of them"],
        [
            (
                one["task"],
                one["checkpoint_lsn"],
                len(one["increments"]),
                bytes_text(one["restore_bytes"]),
                one["change_entries"],
                bytes_text(one["change_bytes"]),
            )
            for one in tasks
        ],
    )
    for one in tasks:
        if one["problem"]:
            echo(f"\n{one['task']}: {one['problem']}")
        if one["parts"]:
            echo(f"\n{one['task']}")
            show_table(
                ["part", "kind", "rows", "bytes"],
                [
                    (part["name"], part["kind"], part["rows"], bytes_text(part["bytes"]))
                    for part in one["parts"]
                ],
            )
        if nodes and one["nodes"]:
            text = ", ".join(f"{node}: {rows}" for node, rows in one["nodes"].items())
            echo(f"rows by virtual node: {text}")
        if one["increments"]:
            echo("")
            show_table(
                ["from", "to", "rows", "bytes", "file"],
                [
                    (
                        file["base_lsn"],
                        file["marker_lsn"],
                        file["rows"],
                        bytes_text(file["bytes"]),
                        file["path"],
                    )
                    for file in one["increments"]
                ],
            )
