"""Term and vote on disk: one small file, replaced whole.

Promise: when `write` returns, the vote survives a power cut; an interrupted write leaves the
previous one. A file that fails its checksum is refused, never read as "no vote".

Survives: a crash at any line. The draft is synced before it takes the name, and the folder after.
"""

from pathlib import Path

import msgspec
from crc32c import crc32c

from dovetail.durable_files import replace_file
from dovetail.election.effects import Vote
from dovetail.election.identifiers import MemberName, Term
from dovetail.errors import Damaged


class _Form(msgspec.Struct):
    term: int
    candidate: str | None


class VoteFile:
    """The file of one member."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Vote:
        """The vote on disk, or none if there is no file. Raises `Damaged`."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return Vote()
        payload, _, checksum = content.rstrip(b"\n").rpartition(b" ")
        if checksum != _checksum(payload):
            raise Damaged(
                f"{self._path} fails its checksum: term and vote are unknown. Restore the file, or "
                "remove it if this member has been stopped for longer than an election takes"
            )
        try:
            form = msgspec.json.decode(payload, type=_Form)
        except msgspec.DecodeError as error:
            raise Damaged(f"{self._path} is the file of another program: {error}") from error
        candidate = None if form.candidate is None else MemberName(form.candidate)
        return Vote(Term(form.term), candidate)

    def write(self, vote: Vote) -> None:
        """Replaces the vote. Raises `OSError`; then nothing may be said that rests on it."""
        payload = msgspec.json.encode(_Form(vote.term, vote.candidate))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, payload + b" " + _checksum(payload) + b"\n")


def _checksum(payload: bytes) -> bytes:
    return f"{crc32c(payload):08x}".encode()
