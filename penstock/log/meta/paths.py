"""Paths and values that every metadata store accepts, and the errors for those that none does.

Pure. The letters are those that ZooKeeper, a file name and a log line all bear. Law: a path that
passes here has no empty part, no `.` and no `..`, so no store can be led outside of its own place.
"""

from __future__ import annotations

import re

from penstock.errors import BadRequest, TooLarge

ROOT = "/"
#: A whole path is one file name of the directory store, which may have 255 bytes.
PATH_LETTERS_MAX = 200
#: ZooKeeper's own limit is 1 MiB for a request: the value, its path and its access list.
VALUE_BYTES_MAX = 1_000_000
_PART = re.compile(r"[A-Za-z0-9._:@+=-]+")


def is_part(name: str) -> bool:
    """One name between two slashes."""
    return _PART.fullmatch(name) is not None and name not in (".", "..")


def check_path(path: str, *, root: bool = False) -> str:
    """Raises BadRequest; the root itself passes only where it makes sense."""
    if path == ROOT and root:
        return path
    if not path.startswith("/") or not all(map(is_part, path[1:].split("/"))):
        raise BadRequest(
            f"{path!r} is not a path of the metadata: /parts of letters, digits and . _ : @ + = -"
        )
    if len(path) > PATH_LETTERS_MAX:
        raise BadRequest(f"the metadata path {path[:40]}… has over {PATH_LETTERS_MAX} letters")
    return path


def check_value(path: str, data: bytes) -> None:
    if len(data) > VALUE_BYTES_MAX:
        raise TooLarge(f"{path}: {len(data)} bytes, metadata holds at most {VALUE_BYTES_MAX}")


def parent_of(path: str) -> str:
    """The path above; of `/a` it is the root."""
    return path.rpartition("/")[0] or ROOT


def parents_of(path: str) -> list[str]:
    """All paths above, the highest first, without the root."""
    parts = path[1:].split("/")[:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


def name_of(path: str) -> str:
    return path.rpartition("/")[2]
