"""Manifests as other writers would have left them: the newest one of a table, edited in place."""

import struct
from collections.abc import Callable
from pathlib import Path

from lance_stream._proto import table_pb2


def newest_manifest(table: Path) -> Path:
    """Return the file of the newest version, of either naming scheme."""
    names = [path for path in (table / "_versions").iterdir() if path.suffix == ".manifest"]

    def version(path: Path) -> int:
        number = int(path.stem)
        return number if number < 1 << 63 else (1 << 64) - 1 - number

    return max(names, key=version)


def split_manifest(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return what stands before the message, the message, and what stands behind it."""
    (position,) = struct.unpack_from("<Q", data, len(data) - 16)
    (size,) = struct.unpack_from("<I", data, position)
    start = position + 4
    return data[:position], data[start : start + size], data[start + size :]


def join_manifest(before: bytes, message: bytes, behind: bytes) -> bytes:
    """Return the file of a manifest."""
    return before + struct.pack("<I", len(message)) + message + behind


def edit_manifest(table: Path, change: Callable[[table_pb2.Manifest], object]) -> None:
    """Change the message of the newest version of a table."""
    path = newest_manifest(table)
    before, body, behind = split_manifest(path.read_bytes())
    message = table_pb2.Manifest.FromString(body)
    change(message)
    path.write_bytes(join_manifest(before, message.SerializeToString(), behind))


def add_bytes_to_manifest(table: Path, extra: bytes) -> None:
    """Add serialized fields to the message of the newest version."""
    path = newest_manifest(table)
    before, body, behind = split_manifest(path.read_bytes())
    path.write_bytes(join_manifest(before, body + extra, behind))
