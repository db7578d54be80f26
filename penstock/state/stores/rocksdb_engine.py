"""Bytes by key in RocksDB, one database per task, through rocksdict.

    c              the cut
    k<key>         values

A commit is one batch, written with a sync of RocksDB's log; a commit that begins anew deletes the
range of all keys in the same batch. RocksDB has checksums of its own, in its log and its files.
A database is open in one process at a time.

Laws: those of bytes_api.py.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from penstock.errors import BadConfig, ChecksumMismatch, Unavailable
from penstock.log.directories import make_directory
from penstock.state.stores.bytes_api import NOTHING, check_commit, check_cut

_CUT: Final = b"c"
_KEY: Final = b"k"
_BEHIND: Final = b"l"
_NUMBER: Final = struct.Struct("<Q")


class RocksdbEngine:
    """An Engine; see bytes_api.py."""

    def __init__(self, directory: Path, *, writes: bool = True) -> None:
        """Raises Damaged for a database that RocksDB cannot read, Unavailable if it is in use.

        Who does not write has what was there at this moment, whoever writes meanwhile.
        """
        self._rocksdict = import_rocksdict()
        self._shown = f"rocksdb://{directory}"
        options = self._rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_keep_log_file_num(2)
        self._write_options = self._rocksdict.WriteOptions()
        self._write_options.sync = True
        self._db: Any = None
        access = self._rocksdict.AccessType
        with self._reaching():
            if writes:
                make_directory(directory)
            access_type = access.read_write() if writes else access.read_only()
            self._db = self._rocksdict.Rdict(str(directory), options, access_type=access_type)

    def cut(self) -> int:
        with self._reaching():
            stored = self._db.get(_CUT)
        return NOTHING if stored is None else int(_NUMBER.unpack(stored)[0])

    def commit(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes] = (),
        *,
        base: int | None,
        cut: int,
    ) -> None:
        check_commit(puts, deletes, base, cut)
        check_cut(self.cut(), base, cut, self._shown)
        batch = self._rocksdict.WriteBatch(raw_mode=True)
        if base is None:
            batch.delete_range(_KEY, _BEHIND)
        for key, value in puts.items():
            batch.put(_KEY + key, value)
        for key in deletes:
            batch.delete(_KEY + key)
        batch.put(_CUT, _NUMBER.pack(cut))
        with self._reaching():
            self._db.write(batch, self._write_options)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        with self._reaching():
            found: list[bytes | None] = self._db.get([_KEY + key for key in keys])
        return found

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        start = _KEY + prefix
        options = self._rocksdict.ReadOptions()
        with self._reaching():
            entries = self._db.iter(options)
            entries.seek(start)
            while entries.valid():
                key: bytes = entries.key()
                if not key.startswith(start):
                    break
                yield key[1:], entries.value()
                entries.next()
            entries.status()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """rocksdict raises plain exceptions, with RocksDB's words."""
        try:
            yield
        except GeneratorExit:
            raise
        except Exception as error:
            text = f"{self._shown}: {error}"
            if str(error).startswith("Corruption"):
                raise ChecksumMismatch(text) from error
            raise Unavailable(text) from error


def import_rocksdict() -> Any:
    """RocksDB, or BadConfig that says how to install it."""
    try:
        import rocksdict
    except ImportError as error:
        raise BadConfig(f"{error}: pip install 'penstock[rocksdb]'") from None
    return rocksdict
