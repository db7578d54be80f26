"""Files as tests leave them for somebody: damaged, or secret."""

from __future__ import annotations

from pathlib import Path


def zero(path: Path, start: int, end: int) -> None:
    """Bytes [start, end) are zeros, as a disk returns a sector that it lost."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def flip_bit(path: Path, position: int | None = None, mask: int = 1) -> None:
    """Damage one byte: the one in the middle, if none is named."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= mask
    path.write_bytes(data)


def token_file(path: Path, token: str = "0" * 64) -> Path:
    """A token that nobody else may read."""
    path.touch(mode=0o600)
    path.write_text(token)
    return path
