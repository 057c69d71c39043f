"""The bytes of tar headers: plain ustar, with a PAX header in front only where a name or a size does not fit."""

from __future__ import annotations

from typing import Literal

Kind = Literal["file", "folder", "link"]
END = bytes(1024)
"""The two zero blocks that close an archive."""

_TYPES = {"file": b"0", "link": b"2", "folder": b"5"}
_USTAR_SIZES = 8 << 30


def header(path: bytes, kind: Kind, mode: int, *, size: int = 0, target: bytes = b"") -> bytes:
    """What precedes a member's content: mtime, uid and gid 0, no names.

    `path` is relative with `/`, `size` is the content's in bytes (of files only), `target` a link's.
    """
    if kind == "folder":
        path += b"/"
    records = b""
    prefix, name = _split(path)
    if len(name) > 100:
        records += _record(b"path", path)
    if len(target) > 100:
        records += _record(b"linkpath", target)
    if size >= _USTAR_SIZES:
        records += _record(b"size", b"%d" % size)
    # Where a record has the value, readers do not look at the field.
    plain = _ustar(name[:100], prefix, mode, size if size < _USTAR_SIZES else 0, _TYPES[kind], target[:100])
    if not records:
        return plain
    try:
        records.decode()
    except UnicodeDecodeError:
        # PAX text is UTF-8 unless this record says otherwise: bsdtar then keeps the bytes, as GNU tar always does.
        records = _record(b"hdrcharset", b"BINARY") + records
    extended = _ustar(b"././@PaxHeader", b"", 0o644, len(records), b"x", b"")
    return extended + records + padding(len(records)) + plain


def padding(size: int) -> bytes:
    """The zeros that fill up the last 512-byte block of a content."""
    return bytes(-size % 512)


def _ustar(name: bytes, prefix: bytes, mode: int, size: int, kind: bytes, target: bytes) -> bytes:
    head = b"%b%07o\x000000000\x000000000\x00%011o\x0000000000000\x00" % (name.ljust(100, b"\0"), mode, size)
    tail = b"%b%bustar\x0000%b0000000\x000000000\x00%b" % (kind, target.ljust(100, b"\0"), bytes(64), prefix)
    tail = tail.ljust(356, b"\0")
    # The checksum counts its own eight bytes as blanks.
    return b"%b%06o\0 %b" % (head, sum(head) + sum(tail) + 8 * ord(" "), tail)


def _split(path: bytes) -> tuple[bytes, bytes]:
    """ustar's (prefix, name) of a path; a name over 100 bytes says that it does not fit."""
    if len(path) <= 100:
        return b"", path
    # The first slash that leaves a short enough name makes the shortest prefix.
    cut = path.find(b"/", len(path) - 101, len(path) - 1)
    return (path[:cut], path[cut + 1 :]) if 0 < cut <= 155 else (b"", path)


def _record(key: bytes, value: bytes) -> bytes:
    """`<length> key=value\\n`, where the length counts its own digits."""
    body = b" %b=%b\n" % (key, value)
    length = len(body)
    while length != len(body) + len(b"%d" % length):
        length = len(body) + len(b"%d" % length)
    return b"%d%b" % (length, body)
