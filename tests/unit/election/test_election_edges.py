"""Settings, the vote on disk, and sealed messages."""

import dataclasses
import os
import random
from pathlib import Path
from typing import Any

import pytest

from dovetail.election import Algorithm, VoteFile
from dovetail.election.effects import Vote
from dovetail.election.election import Identity
from dovetail.election.identifiers import Incarnation, MemberName, Term
from dovetail.election.messages import MESSAGE_BYTES_MAX, Message, Resign, decode_message
from dovetail.election.signature import WINDOW, Sealer
from dovetail.errors import Damaged, InvalidSetting, ProtocolViolation, Refused
from dovetail.settings.stream import SharedStreamSettings
from dovetail.stream import StreamSettings, Takeover

# --- settings -------------------------------------------------------------------------------------


def settings(**given: Any) -> StreamSettings:
    return StreamSettings(**{"coordination_stream_id": "shared", **given})


def test_the_defaults_are_those_of_the_source() -> None:
    """S10: every setting of the source is there, under its name and with its default."""
    found = settings()
    found.check()
    assert found.environment_identifier == "test"
    assert found.participant_write_interval_millis == 86_400_000
    assert found.algorithm is Algorithm.BULLY
    assert found.endpoint_scheme == "http"
    assert found.endpoint_path == "/symphony-api/cluster-communication"
    assert found.timeout_ms == 5_000
    assert found.start_immediately
    assert found.takeover is Takeover.SKIP
    host = os.uname().nodename
    assert found.endpoint == f"http://{host}:8080/symphony-api/cluster-communication"
    assert found.times.heartbeat_ms * 2 <= found.times.timeout_ms


def test_the_settings_file_has_the_same_names_and_defaults() -> None:
    """S10: what is set in `[stream]` is what the stream gets."""
    section = SharedStreamSettings(coordination_stream_id="shared")
    assert StreamSettings.of(section.model_dump()) == settings()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"coordination_stream_id": ""}, "required"),
        ({"environment_identifier": "a/b"}, "without a slash"),
        ({"heartbeat_ms": 2_501}, "at most 2500"),
        ({"heartbeat_ms": -1}, "above 0"),
        ({"timeout_ms": 49}, "below 50"),
        ({"participant_write_interval_millis": 9_999}, "two timeouts"),
        ({"endpoint_host_and_port": "here"}, "host:port"),
        ({"endpoint_path": "cluster"}, "begin with a slash"),
        ({"endpoint_path": "/health"}, "are reserved"),
        ({"endpoint_scheme": "https"}, "certificate_path"),
        ({"batch_events_max": 0}, "above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], said: str) -> None:
    """S10: a heartbeat that does not fit its timeout, and all the others, before anything runs."""
    with pytest.raises(InvalidSetting, match=said):
        settings(**given).check()


@pytest.mark.parametrize("secret", ["", "short"])
def test_an_endpoint_without_a_secret_is_refused(secret: str) -> None:
    """S10: the endpoint is authenticated, always."""
    with pytest.raises(InvalidSetting, match="16 or more"):
        settings(shared_secret=secret).check_secret()
    assert "secret" not in repr(settings(shared_secret="x" * 32))


# --- the vote on disk -----------------------------------------------------------------------------

VOTE = Vote(Term(7), MemberName("http://a:1/x"))


def test_a_vote_is_read_back(tmp_path: Path) -> None:
    """S3: also by another process, and the last one wins."""
    path = tmp_path / "deep" / "vote"
    assert VoteFile(path).read() == Vote()
    VoteFile(path).write(VOTE)
    VoteFile(path).write(dataclasses.replace(VOTE, term=Term(8)))
    assert VoteFile(path).read() == Vote(Term(8), VOTE.candidate)


def test_every_changed_byte_of_a_vote_is_noticed(tmp_path: Path) -> None:
    """S3: a vote that does not check is refused, and never read as none."""
    path = tmp_path / "vote"
    VoteFile(path).write(VOTE)
    good = path.read_bytes()
    for at in range(len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(Damaged):
            VoteFile(path).read()
    for length in range(1, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(Damaged):
            VoteFile(path).read()


def test_a_crash_at_any_step_leaves_a_whole_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3: the old one or the new one."""
    path = tmp_path / "vote"
    VoteFile(path).write(VOTE)
    after = dataclasses.replace(VOTE, term=Term(8))
    for name in ("fsync", "rename"):
        with monkeypatch.context() as patch:

            def crash(*_: object) -> None:
                raise OSError("the lights go out")

            patch.setattr(*((os, "fsync") if name == "fsync" else (Path, "rename")), crash)
            with pytest.raises(OSError, match="lights"):
                VoteFile(path).write(after)
        assert VoteFile(path).read() == VOTE
    VoteFile(path).write(after)
    assert VoteFile(path).read() == after


# --- sealed messages ------------------------------------------------------------------------------

A = Identity(MemberName("a"), Incarnation("a1"))
B = Identity(MemberName("b"), Incarnation("b1"))
SECRET = b"a secret of sixteen bytes or more"


def sealer(me: Identity, secret: bytes = SECRET, *known: Identity) -> Sealer:
    lives = {who.name: who.incarnation for who in (A, B, *known)}
    return Sealer(me, secret, lives.get)


def message(term: int = 1) -> Message:
    return Resign(sender=A.name, incarnation=A.incarnation, term=Term(term))


def test_a_sealed_message_is_opened_once() -> None:
    """S10: and a replay is refused."""
    sender, receiver = sealer(A), sealer(B)
    body, signature = sender.seal(B.name, message())
    assert receiver.open(body, signature) == message()
    with pytest.raises(Refused, match="arrived before"):
        receiver.open(body, signature)


def test_messages_may_overtake_each_other() -> None:
    """S10: within the window each is taken once, whatever the order."""
    sender, receiver = sealer(A), sealer(B)
    sealed = [sender.seal(B.name, message(n)) for n in range(200)]
    random.Random(1).shuffle(sealed)
    opened = [receiver.open(*pair).term for pair in sealed]
    assert sorted(opened) == list(range(200))
    for pair in sealed:
        with pytest.raises(Refused, match="arrived before"):
            receiver.open(*pair)


def test_a_message_older_than_the_window_is_refused() -> None:
    """S10: what is forgotten is not taken for new."""
    sender, receiver = sealer(A), sealer(B)
    old = sender.seal(B.name, message())
    for _ in range(WINDOW + 1):
        receiver.open(*sender.seal(B.name, message()))
    with pytest.raises(Refused, match="arrived before"):
        receiver.open(*old)


def test_a_changed_or_forged_message_is_refused() -> None:
    """S10: every byte is covered; another secret opens nothing."""
    body, signature = sealer(A).seal(B.name, message())
    for at in range(len(body)):
        with pytest.raises(Refused, match="signature"):
            sealer(B).open(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :], signature)
    with pytest.raises(Refused, match="signature"):
        sealer(B, b"another secret, also long enough").open(body, signature)


def test_a_message_for_an_earlier_life_is_refused() -> None:
    """S10: a restarted member has forgotten what it saw, and needs no memory of it."""
    again = Identity(B.name, Incarnation("b2"))
    body, signature = sealer(A).seal(B.name, message())
    with pytest.raises(Refused, match="earlier life"):
        sealer(again).open(body, signature)


def test_a_message_of_an_earlier_life_of_its_sender_is_refused() -> None:
    """S10: what was recorded before a restart is worth nothing after it."""
    body, signature = sealer(A).seal(B.name, message())
    later = sealer(B, SECRET, Identity(A.name, Incarnation("a2")))
    with pytest.raises(Refused, match="not in the shared log"):
        later.open(body, signature)


def test_an_answer_answers_one_message() -> None:
    """S10: it cannot be given to another one."""
    sender, receiver = sealer(A), sealer(B)
    _, first = sender.seal(B.name, message())
    _, second = sender.seal(B.name, message())
    body, signature = receiver.seal_answer(message(), first)
    assert sender.open_answer(body, signature, first) == message()
    with pytest.raises(Refused, match="answer is wrong"):
        sender.open_answer(body, signature, second)


def test_foreign_and_oversize_bytes_are_no_message() -> None:
    """S10: they raise one error, whatever they are."""
    chance = random.Random(2)
    for size in (0, 1, 10, 100, MESSAGE_BYTES_MAX + 1):
        with pytest.raises(ProtocolViolation):
            decode_message(chance.randbytes(size))
