"""A store of checkpoints by its URI: files on any file system of pyarrow.fs, or a store of rows.

Law: an address that cannot be used raises before anything runs, with the reason.
"""

from __future__ import annotations

from penstock.state.checkpoint_store import CheckpointStore
from penstock.state.stores.api import StateStore
from penstock.state.stores.row_stores import SCHEMES, check_row_store, open_row_store


def open_store(uri_or_path: str, log_id: str) -> StateStore:
    """Asks nobody: a task whose store is away goes on without it. Raises BadConfig."""
    if _has_rows(uri_or_path):
        return open_row_store(uri_or_path, log_id)
    return CheckpointStore(uri_or_path, log_id)


def check_store(uri_or_path: str, log_id: str) -> None:
    """Whether it can be used now: raises BadConfig, or Unavailable if nobody answers."""
    open_store(uri_or_path, log_id)
    if _has_rows(uri_or_path):
        check_row_store(uri_or_path)


def _has_rows(uri_or_path: str) -> bool:
    scheme, colon, _ = uri_or_path.partition(":")
    return bool(colon) and scheme in SCHEMES
