"""The audit log: who changed what from where, and with which outcome.

Promise: a change begins only when a line says so, and ends with a second line of the same id. A
node that dies in between leaves a line without an end, whose outcome is `unknown`. A change that
cannot be recorded does not happen.

The file is `audit.jsonl` in the data folder, one JSON object a line. At its limit it becomes
`audit.1.jsonl`, and so on; the oldest goes. Lines survive the death of the process; they are not
synced, so a power cut can lose the last ones. Bodies of messages and tokens are never written.
"""

import asyncio
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from dovetail.clock import Clock
from dovetail.console.web.endpoint import Caller
from dovetail.console.web.threads import Threads
from dovetail.errors import Unavailable

#: One file: some 15,000 changes by people, months of them.
FILE_BYTES_MAX = 4 * 1024 * 1024
#: Files beside the one that is written.
FILES_KEPT = 4
#: Longest text of an error in a line.
ERROR_CHARACTERS_MAX = 500
#: Lines that one answer looks at; a page of entries needs two lines each.
_LINES_MAX = 200_000

Outcome = Literal["begun", "done", "refused", "failed", "unknown"]


class AuditEntry(Struct, frozen=True, rename={"origin": "from"}):
    """A change; `detail` has what was asked, without the bodies of messages."""

    id: str
    at_ms: int
    who: str
    origin: str
    action: str
    target: str
    detail: dict[str, Any]
    outcome: Outcome
    error: str | None = None


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which entries."""

    limit: Annotated[int, Meta(ge=1, le=1_000, description="Entries to show.")] = 100
    before: Annotated[
        Annotated[str, Meta(max_length=100)] | None,
        Meta(description="Entries older than the one of this id."),
    ] = None


class AuditPage(Struct, frozen=True):
    """Entries, newest first; `next` is the `before` of the page behind this one."""

    entries: list[AuditEntry]
    next: str | None


class AuditLog:
    """Writes and reads the log of one node."""

    def __init__(
        self, folder: Path, clock: Clock, threads: Threads, *, file_bytes_max: int = FILE_BYTES_MAX
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._threads = threads
        self._file_bytes_max = file_bytes_max
        self._writing = asyncio.Lock()
        self._under_way: set[str] = set()

    async def begin(
        self, caller: Caller, action: str, target: str, detail: dict[str, Any]
    ) -> AuditEntry:
        """Writes that a change begins. Raises `Unavailable` if that cannot be written."""
        entry = AuditEntry(
            id=uuid.uuid4().hex[:16],
            at_ms=self._clock.wall_ms(),
            who=caller.who,
            origin=caller.address,
            action=action,
            target=target,
            detail=detail,
            outcome="begun",
        )
        await self._append(entry)
        self._under_way.add(entry.id)
        return entry

    async def end(self, entry: AuditEntry, outcome: Outcome, error: str | None = None) -> None:
        """Writes what became of it. Raises `Unavailable`."""
        self._under_way.discard(entry.id)
        text = None if error is None else error[:ERROR_CHARACTERS_MAX]
        await self._append(msgspec.structs.replace(entry, outcome=outcome, error=text))

    async def page(self, *, limit: int, before: str | None = None) -> AuditPage:
        """The newest entries, or those before the one of an id."""
        return await self._threads.run(self._page, limit, before)

    async def _append(self, entry: AuditEntry) -> None:
        async with self._writing:
            try:
                await self._threads.run(self._write, msgspec.json.encode(entry) + b"\n")
            except OSError as error:
                raise Unavailable(
                    f"the audit log in {self._folder} cannot be written ({error.strerror}), and "
                    "nothing is changed without it; make room or give the node the right to write"
                ) from error

    def _write(self, line: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(0)
        if path.exists() and path.stat().st_size + len(line) > self._file_bytes_max:
            for number in range(FILES_KEPT, 0, -1):
                if self._path(number - 1).exists():
                    self._path(number - 1).replace(self._path(number))
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":
                # A full disk cut the last line off; it must not take this one with it.
                line = b"\n" + line
            if os.write(handle, line) != len(line):
                raise OSError(28, "no room on the disk")
        finally:
            os.close(handle)

    def _path(self, number: int) -> Path:
        return self._folder / ("audit.jsonl" if number == 0 else f"audit.{number}.jsonl")

    def _page(self, limit: int, before: str | None) -> AuditPage:
        wanted: list[AuditEntry] = []
        seen: set[str] = set()
        skipping = before is not None
        for entry in self._newest_first():
            if entry.id in seen:
                continue
            seen.add(entry.id)
            if skipping:
                skipping = entry.id != before
                continue
            if entry.outcome == "begun" and entry.id not in self._under_way:
                entry = msgspec.structs.replace(entry, outcome="unknown")
            wanted.append(entry)
            if len(wanted) > limit:
                break
        more = len(wanted) > limit
        wanted = wanted[:limit]
        return AuditPage(wanted, wanted[-1].id if more and wanted else None)

    def _newest_first(self) -> Iterator[AuditEntry]:
        lines = 0
        for number in range(FILES_KEPT + 1):
            try:
                content = self._path(number).read_bytes()
            except FileNotFoundError:
                continue
            for line in reversed(content.split(b"\n")):
                lines += 1
                if lines > _LINES_MAX:
                    return
                try:
                    if line:
                        yield msgspec.json.decode(line, type=AuditEntry)
                except msgspec.DecodeError:
                    # The torn end of a line that a power cut or a full disk left.
                    continue
