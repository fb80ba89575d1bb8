"""Dead letters: messages that were set aside, to be inspected, replayed or dropped.

A replay moves a message back into the outbox in one transaction, under its old id and behind what
waits already. It loses its place in the order of its key, which is why a person decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.engine import Engine

from dovetail.errors import InvalidInput, NotFound
from dovetail.outbox.dialects import dialect_of
from dovetail.outbox.reading import contents_of

#: Ids that one statement names; the rest goes into the next.
_IDS_MAX = 1000


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that was set aside."""

    id: int
    topic: str
    key: bytes | None
    partition_key: bytes | None
    headers: str | None
    payload: bytes | None
    message_id: str
    age_ms: int
    reason: str
    attempts: int


def list_dead(engine: Engine, *, topic: str | None = None, limit: int = 100) -> list[DeadMessage]:
    """The newest dead letters, of one topic or of all."""
    return _select(engine, topic=topic, limit=limit, ids=None)


def show_dead(engine: Engine, dead_id: int) -> DeadMessage:
    """One dead letter. Raises `NotFound`."""
    found = _select(engine, topic=None, limit=1, ids=[dead_id])
    if not found:
        raise NotFound(
            f"there is no dead letter {dead_id}; `dovetail outbox dead list` shows them all"
        )
    return found[0]


def replay_dead(
    engine: Engine, *, ids: Sequence[int] | None = None, topic: str | None = None
) -> int:
    """Puts dead letters back into the outbox; returns how many. Raises `NotFound`.

    Chosen by `ids`, or all of `topic`.
    """
    key = dialect_of(engine.dialect.name).key_column
    columns = f"topic, {key}, partition_key, headers, payload, message_id"
    with engine.begin() as connection:
        chosen = _chosen(connection, ids=ids, topic=topic)
        for part in _parts(chosen):
            connection.execute(
                text(
                    f"INSERT INTO kafka_messages ({columns}) SELECT {columns} FROM "
                    "kafka_dead_messages WHERE id IN :ids ORDER BY id"
                ).bindparams(bindparam("ids", expanding=True)),
                {"ids": part},
            )
            _delete(connection, part)
    return len(chosen)


def drop_dead(engine: Engine, *, ids: Sequence[int] | None = None, topic: str | None = None) -> int:
    """Deletes dead letters for good; returns how many. Raises `NotFound`."""
    with engine.begin() as connection:
        chosen = _chosen(connection, ids=ids, topic=topic)
        for part in _parts(chosen):
            _delete(connection, part)
    return len(chosen)


def _select(
    engine: Engine, *, topic: str | None, limit: int, ids: Sequence[int] | None
) -> list[DeadMessage]:
    d = dialect_of(engine.dialect.name)
    conditions, values = ["1 = 1"], {"limit": limit}
    if topic is not None:
        conditions.append("topic = :topic")
        values |= {"topic": topic}  # type: ignore[dict-item]
    if ids is not None:
        conditions.append("id = :id")
        values |= {"id": ids[0]}

    with engine.connect() as connection:
        found = connection.execute(
            text(
                f"SELECT id, topic, {contents_of(d)}, {d.age_ms.format('failed_at')}, reason, "
                f"attempts FROM kafka_dead_messages m WHERE {' AND '.join(conditions)} "
                "ORDER BY id DESC LIMIT :limit"
            ),
            values,
        )
        return [_read(*row) for row in found]


def _read(*row: Any) -> DeadMessage:
    number, topic, key, partition_key, headers, payload, message_id, *fate = row
    return DeadMessage(
        number, topic, key, partition_key, _text(headers), payload, _text(message_id) or "", *fate
    )


def _text(stored: str | bytes | None) -> str | None:
    return stored.decode(errors="replace") if isinstance(stored, bytes) else stored


def _chosen(connection: Connection, *, ids: Sequence[int] | None, topic: str | None) -> list[int]:
    if (ids is None) == (topic is None):
        raise InvalidInput("choose dead letters by their ids or by a topic")
    if topic is not None:
        found = connection.execute(
            text("SELECT id FROM kafka_dead_messages WHERE topic = :topic ORDER BY id"),
            {"topic": topic},
        )
        return [int(row[0]) for row in found]

    wanted = sorted(set(ids or ()))
    there: set[int] = set()
    for part in _parts(wanted):
        found = connection.execute(
            text("SELECT id FROM kafka_dead_messages WHERE id IN :ids").bindparams(
                bindparam("ids", expanding=True)
            ),
            {"ids": part},
        )
        there |= {int(row[0]) for row in found}

    missing = [dead_id for dead_id in wanted if dead_id not in there]
    if missing:
        raise NotFound(f"there is no dead letter {missing[0]}; nothing was changed")
    return wanted


def _delete(connection: Connection, ids: Sequence[int]) -> None:
    connection.execute(
        text("DELETE FROM kafka_dead_messages WHERE id IN :ids").bindparams(
            bindparam("ids", expanding=True)
        ),
        {"ids": list(ids)},
    )


def _parts(ids: Sequence[int]) -> list[list[int]]:
    return [list(ids[at : at + _IDS_MAX]) for at in range(0, len(ids), _IDS_MAX)]
