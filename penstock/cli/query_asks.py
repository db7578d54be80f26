"""What anybody may ask of a query who may run it: over the log, wherever its driver is."""

from __future__ import annotations

import os
import socket

from penstock.ids import Lsn
from penstock.log.client.blocking import BlockingLog
from penstock.log.records import Kind, NewEntry
from penstock.protocol.names import control_tag
from penstock.runtime.control import Message, encode_message


def ask(client: BlockingLog, name: str, message: Message) -> Lsn:
    """Ask the query's coordinator; where the request stands."""
    entry = NewEntry(encode_message(message), (control_tag(name),), Kind.CONTROL)
    return client.append([entry]).first_lsn


def who() -> str:
    """Who asks, for whoever looks into the log."""
    return f"{socket.gethostname()} pid {os.getpid()}"
