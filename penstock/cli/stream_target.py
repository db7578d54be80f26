"""The log that a command is for, with its streams: for those that show or append rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.target import Target

if TYPE_CHECKING:
    from penstock.stream.session import Log


def open_log(target: Target, *, create: bool = False) -> Log:
    """Connect. A directory without a log is refused, unless the command may create one."""
    from penstock.stream.session import connect  # Arrow: what only tells of a command needs none

    if not create:
        target.check()
    return connect(
        target.address or target.directory,
        token_file=target.token_file,
        tls_ca=target.tls_ca,
        timeout=target.timeout,
    )
