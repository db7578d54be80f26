"""`penstock stream list`: from what is registered, without a schema of Arrow's."""

from __future__ import annotations

import click

from penstock.cli.output import json_option, show_json, show_table, time_text
from penstock.cli.target import Target, target_options
from penstock.errors import BadFormat
from penstock.stream.registration import KEY_PREFIX, decode_definition, stream_key


@click.command("list")
@target_options
@json_option
def list_streams(target: Target, as_json: bool) -> None:
    """All streams with their schemas.

    \b
    Examples:
      penstock stream list
      penstock stream list --json | jq -r '.[].name'
    """
    with target.open() as client:
        values = client.list_metadata(KEY_PREFIX)
    names = sorted(key.removeprefix(KEY_PREFIX) for key in values)
    found = [_summary(name, values[stream_key(name)].data) for name in names]
    if as_json:
        show_json(found)
    else:
        show_table(["name", "created", "schema"], [each.values() for each in found])


def _summary(name: str, data: bytes) -> dict[str, str]:
    try:
        found = decode_definition(name, data)
    except BadFormat as error:  # it hides no other
        return {"name": name, "created": "", "ddl": f"({error})"}
    return {"name": name, "created": time_text(found.created_ms), "ddl": found.ddl}
