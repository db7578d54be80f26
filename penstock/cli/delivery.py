"""`penstock delivery …`: the deliveries of a log, from any machine that reaches it.

Owns the commands and their words; the facts are read from the log (delivery_facts.py). A delivery
is run by `penstock deliver`, or by `penstock.deliver` in a program of yours.
"""

from __future__ import annotations

import click

from penstock.cli.delivery_facts import (
    DeliveryFacts,
    State,
    find_delivery,
    lag_words,
    list_facts,
    now_ms,
)
from penstock.cli.output import (
    NOTHING,
    echo,
    json_option,
    show_fields,
    show_json,
    show_table,
    time_text,
)
from penstock.cli.target import Target, target_options
from penstock.config import masked_uri
from penstock.delivery.registration import remove_delivery
from penstock.plain_text import plain


@click.group()
def delivery() -> None:
    """Deliveries to databases: how they stand, change their targets, forget them."""


@delivery.command("list")
@target_options
@json_option
def list_all(target: Target, as_json: bool) -> None:
    """All deliveries, whether they run, and how far they are behind.

    \b
    Examples:
      penstock delivery list
      penstock delivery list --json | jq -r '.[] | select(.lag.seconds > 10).name'
    """
    with target.open() as client:
        found = list_facts(client)
    if as_json:
        show_json([one.as_json() for one in found])
        return
    show_table(
        ["name", "state", "from", "table", "targets", "position", "lag", "problems"],
        [
            (
                one.name,
                one.state.value,
                one.registered.query or one.registered.stream,
                one.registered.table,
                len(one.registered.layout.live),
                one.position,
                lag_words(one.lag),
                sum(problem is not None for problem in one.problems),
            )
            for one in found
        ],
    )


@delivery.command()
@click.argument("name")
@target_options
@json_option
def status(name: str, target: Target, as_json: bool) -> None:
    """How delivery NAME stands, by its last ack: positions, lag, and what is wrong.

    An ack comes at most once a second, and every few seconds if nothing happens. "lost" means that
    none came for a while: its player died, or is cut off from the log.

    \b
    Examples:
      penstock delivery status hot-postgresql-shop
      penstock delivery status hot-postgresql-shop --json | jq '.targets[].problem'
    """
    with target.open() as client:
        found = find_delivery(client, name)
    if as_json:
        show_json(found.as_json())
        return
    show_fields(_head(found))
    echo()
    show_table(
        ["shard", "target", "position", "rows", "problem", "moves"],
        [one.values() for one in found.targets()],
    )


def _head(found: DeliveryFacts) -> list[tuple[str, object]]:
    one, ack = found.registered, found.ack
    heard = NOTHING
    if ack is not None:
        ago = max(0, now_ms() - ack.time_ms) / 1000
        heard = f"{time_text(ack.time_ms)}, {ago:,.1f} s ago"
    fields: list[tuple[str, object]] = [
        ("delivery", found.name),
        ("state", found.state.value),
        ("last ack", heard),
        ("from", f"{found.source}, LSN {one.start} on"),
        ("table", one.table),
        ("key", ", ".join(one.key) or "none: all rows are kept"),
        ("player", None if ack is None else f"instance {ack.term}"),
        ("position", f"all below LSN {found.position} is applied"),
        ("lag", lag_words(found.lag)),
        ("strict", one.strict),
        ("dead letters", None if one.dead_letter is None else f"stream {one.dead_letter}"),
    ]
    if ack is not None and ack.error is not None:
        fields.append(("failed", ack.error))
    return fields


@delivery.command(name="reshard")
@click.argument("name")
@click.option(
    "--to",
    "targets",
    multiple=True,
    required=True,
    metavar="TARGET",
    help="Every target that it has from now on, those that stay included; may be repeated.",
)
@target_options
@json_option
def reshard_command(name: str, targets: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Give delivery NAME other targets, while it runs or not.

    Targets that stay go on. Rows of the others, or for new ones, move at one place of the log, the
    cut: `penstock delivery status` says who is past it. A player that runs opens new targets by
    the addresses that are given here, on its machine: passwords belong into PGPASSWORD or ~/.pgpass
    there. From then on `penstock deliver` is started with this name and these targets, in the order
    in which they are printed; the old ones are refused.

    \b
    Examples:
      penstock delivery reshard hot --to sqlite:////a.db --to sqlite:////b.db --to sqlite:////c.db
      penstock delivery reshard hot --to postgresql://me@db2/shop   # and no other any more
    """
    from penstock.delivery.deliver import registered_address  # Arrow, and all that counts rows
    from penstock.delivery.resharding import reshard

    wanted = [registered_address(uri) for uri in targets]
    with target.open() as client:
        done = reshard(client, name, wanted)
    # Of those that stay, the log may hold less than what was given here: a user's name is hidden.
    given = {masked_uri(uri): uri for uri in wanted}
    uris = [given.get(masked_uri(uri), uri) for uri in done.delivery.targets]
    if as_json:
        show_json(
            {
                "name": name,
                "cut": done.cut,
                "targets": [uris[shard] for shard in done.delivery.layout.live],
                "added": [uris[shard] for shard in done.added],
                "removed": [uris[shard] for shard in done.removed],
            }
        )
        return
    moved = len(done.delivery.layout.moves(done.cut))
    echo(
        f"delivery {name} has {len(done.delivery.layout.live)} targets from LSN {done.cut} on, and "
        f"{moved} of {len(done.delivery.route)} virtual nodes move; penstock delivery status "
        f"{name} says who is past it. From now on start it with this name and these targets, in "
        "this order:"
    )
    echo(f"  --name {plain(name)}")
    for shard in done.delivery.layout.live:
        echo(f"  --to {plain(uris[shard])}")


@delivery.command()
@click.argument("name")
@target_options
@json_option
def remove(name: str, target: Target, as_json: bool) -> None:
    """Forget delivery NAME: it holds back no trim any more. Its tables stay as they are.

    A player that runs it ends. Started again under its name, with the same targets, it goes on
    where each of them is, if the log still has what comes next.

    \b
    Examples:
      penstock delivery remove hot-postgresql-shop
      penstock delivery remove hot-postgresql-shop && penstock log trim --consumed
    """
    with target.open() as client:
        found = find_delivery(client, name)
        remove_delivery(client, name)
    kept = found.registered
    if as_json:
        remains = {"table": kept.table, "targets": kept.targets}
        show_json({"name": name, "removed": True, "was": found.state.value, "remains": remains})
        return
    ends = "; its player ends" if found.state is State.RUNNING else ""
    where = plain(", ".join(kept.targets))
    echo(f"forgot delivery {name}{ends}. Table {plain(kept.table)} stays in {where}")
