"""The file of a backup: a plain tar, whose last member lists all others.

    ledgers/identity               the identity of the disk of the ledgers
    ledgers/0000000001.segment     as it was at the cut
    timelines/0000000001.sqlite    a timeline
    coordination                   every key with its value; MessagePack
    backup.json                    the list: sizes and CRC-32C of all the above; it is last

A node that cannot continue ends the file, wherever it is, with the reason (`gave_up`).

Index files are left out: a start builds them from the segments.
"""

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
from crc32c import crc32c
from msgspec import Struct

from dovetail.errors import Damaged, InvalidInput, NotFound, Unavailable

#: Raised when an older version could not read it.
FORMAT = 1

LIST = "backup.json"
COORDINATION = "coordination"
IDENTITY = "ledgers/identity"

#: Stands in a data folder while a backup is restored into it.
MARK = "restore-unfinished"

#: Bytes that are read and sent at once: large beside a seek, small beside the memory of a node.
CHUNK_BYTES = 1024 * 1024

#: The list of a node with a million segments has less.
_LIST_BYTES_MAX = 256 * 1024 * 1024

_NAME = re.compile(
    r"ledgers/identity|ledgers/\d{10}\.segment|timelines/\d{10}\.sqlite|coordination", re.ASCII
)


def belongs(name: str) -> bool:
    """Whether a file of this name is part of a backup."""
    return _NAME.fullmatch(name) is not None


class Member(Struct, frozen=True):
    """A file of a backup."""

    size: int
    crc32c: int


class Contents(Struct, frozen=True):
    """The list of a backup."""

    format: int
    version: str
    node_id: int
    at_ms: int
    #: Where timelines are kept: "sqlite", "postgres" (not in here), or "none".
    timelines: str
    files: dict[str, Member]
    #: Segments of which the disk did not give all; the missing bytes read as damage.
    unreadable: list[str] = []


class Key(Struct, frozen=True, array_like=True):
    """A key of the coordination service."""

    key: str
    value: bytes


def head(name: str, size: int, *, at_ms: int) -> bytes:
    """What stands before a member."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, at_ms // 1000
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    """What stands behind a member of this size."""
    return bytes(-size % tarfile.BLOCKSIZE)


#: The end of the file.
END = bytes(2 * tarfile.BLOCKSIZE)


#: What the end of a file begins with that the node gave up; its longest text.
_GAVE_UP = b"\0dovetail gave this backup up: "
_REASON_BYTES_MAX = 1000


def gave_up(reason: str) -> bytes:
    """The end of a file that the node cannot make whole."""
    return _GAVE_UP + reason.encode(errors="replace")[:_REASON_BYTES_MAX]


def _reason_given(path: Path) -> str | None:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _REASON_BYTES_MAX - len(_GAVE_UP)))
        _, found, reason = file.read().rpartition(_GAVE_UP)
    return reason.decode(errors="replace") if found else None


class _Plain(tarfile.TarInfo):
    """A file of bytes, as all members are.

    Links may name each other without end, and other kinds ask for any amount of memory.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Plain":
        found = super().frombuf(buf, encoding, errors)
        if found.type != tarfile.REGTYPE:
            raise tarfile.ReadError(f"{found.name[:100]!r} in it is not a plain file")
        return found


class Archive:
    """A backup that is there whole; use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Reads the list.

        Raises `NotFound`, `Damaged`, `InvalidInput` (another format), `Unavailable` for a file that
        the node gave up.
        """
        self.path = path
        try:
            reason = _reason_given(path)
            if reason is not None:
                raise Unavailable(f"the node could not finish this backup: {reason}")
            self._tar = tarfile.open(path, "r:", tarinfo=_Plain)  # noqa: SIM115 - see `__exit__`
        except FileNotFoundError as error:
            raise NotFound(f"there is no file {path}") from error
        except tarfile.TarError as error:
            raise Damaged(f"{path} is not a backup: {error}") from error
        try:
            self.contents = self._read_list()
        except BaseException:
            self._tar.close()
            raise

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *exc: object) -> None:
        self._tar.close()

    def _read_list(self) -> Contents:
        try:
            names = self._tar.getnames()
            if LIST not in names:
                raise Damaged(f"{self.path} is not complete: its list is missing; take it again")
            contents = msgspec.json.decode(self._text(LIST), type=Contents)
        except (tarfile.TarError, EOFError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Damaged(f"{self.path} is not a complete backup: {error}") from error
        if contents.format != FORMAT:
            raise InvalidInput(
                f"{self.path} has format {contents.format}, and this version reads {FORMAT}; "
                f"restore it with version {contents.version}"
            )

        if sorted(names) != sorted([*contents.files, LIST]):
            raise Damaged(f"{self.path} does not hold the files that it lists; use another backup")
        missing = {COORDINATION, IDENTITY} - contents.files.keys()
        if missing:
            raise Damaged(f"{self.path} has no {min(missing)!r}, which every backup has")
        for name in contents.files:
            if not belongs(name):
                raise Damaged(f"{self.path} holds {name[:100]!r}, which is not part of a backup")
        return contents

    def _text(self, name: str) -> str:
        file = self._tar.extractfile(name)
        if file is None:
            raise Damaged(f"{self.path}: {name} is not a file")
        return file.read(_LIST_BYTES_MAX).decode()

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a file. Raises `Damaged` at the end if they are not those of the list."""
        wanted = self.contents.files[name]
        size = checksum = 0
        file: IO[bytes] | None = self._tar.extractfile(name)
        if file is None:
            raise Damaged(f"{self.path}: {name} is not a file")
        try:
            while chunk := file.read(CHUNK_BYTES):
                size += len(chunk)
                checksum = crc32c(chunk, checksum)
                yield chunk
        except tarfile.TarError as error:
            raise Damaged(f"{self.path}: {name}: {error}") from error
        if (size, checksum) != (wanted.size, wanted.crc32c):
            raise Damaged(f"{self.path}: {name} fails its checksum; use another backup")

    def check(self) -> None:
        """Reads all of it. Raises `Damaged`."""
        for name in self.contents.files:
            for _ in self.chunks(name):
                pass

    def keys(self) -> list[Key]:
        """The keys of the coordination service. Raises `Damaged`."""
        try:
            return msgspec.msgpack.decode(b"".join(self.chunks(COORDINATION)), type=list[Key])
        except msgspec.DecodeError as error:
            raise Damaged(f"{self.path}: its keys cannot be read: {error}") from error
