"""The conversation of a login: what is told, and what is not."""

import base64
import hashlib

import pytest
from scramp import ScramClient  # type: ignore[import-untyped]

from dovetail.access import Credential, Login, LoginFailed, Mechanism, make_credential
from dovetail.access.credentials import ROUNDS, fits, from_salted
from dovetail.errors import InvalidInput

PASSWORD = "s3cret, with ü"
USER: dict[Mechanism, Credential] = {
    mechanism: make_credential(mechanism, PASSWORD) for mechanism in Mechanism
}
ALL = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


def look_up(name: str) -> dict[Mechanism, Credential] | None:
    return USER if name == "alice" else None


async def scram(login: Login, how: str, name: str, password: str) -> None:
    client = ScramClient([how], name, password)
    assert login.handshake(how)
    client.set_server_first((await login.authenticate(client.get_client_first().encode())).decode())
    client.set_server_final((await login.authenticate(client.get_client_final().encode())).decode())


@pytest.mark.parametrize("how", ALL[:2])
async def test_scram(how: str) -> None:
    """R4: each side proves to the other that it knows the password."""
    login = Login(ALL, look_up)
    await scram(login, how, "alice", PASSWORD)
    assert login.principal == "alice"
    for name, password in (("alice", "wrong"), ("eve", PASSWORD)):
        refused = Login(ALL, look_up)
        with pytest.raises(LoginFailed, match="the name or the password is wrong"):
            await scram(refused, how, name, password)
        assert refused.principal is None


async def test_nobody_learns_who_is_a_user() -> None:
    """R4: a name that nobody has gets a salt too, and the same one when it asks again."""
    firsts = []
    for _ in range(2):
        login = Login(ALL, look_up)
        assert login.handshake("SCRAM-SHA-256")
        client = ScramClient(["SCRAM-SHA-256"], "eve", PASSWORD)
        answer = (await login.authenticate(client.get_client_first().encode())).decode()
        firsts.append(answer.split(",")[1:])
    assert firsts[0] == firsts[1]
    assert firsts[0][1] == f"i={ROUNDS}"


async def test_salts_do_not_tell_who_is_a_user() -> None:
    """F52: names that nobody has get salts and rounds of all the looks that users' have."""
    salt = b"1m8kz0hq5c7w2xv9ayt3nb4rdf"
    by_tools = {
        mechanism: from_salted(mechanism, b"x" * (16 << mechanism), salt=salt, rounds=4096)
        for mechanism in Mechanism
    }
    seen = set()
    for number in range(50):
        login = Login(ALL, look_up, lambda: [USER, by_tools])
        assert login.handshake("SCRAM-SHA-256")
        client = ScramClient(["SCRAM-SHA-256"], f"nobody-{number}", PASSWORD)
        answer = (await login.authenticate(client.get_client_first().encode())).decode()
        _, salted, rounds = answer.split(",")
        made = base64.b64decode(salted.removeprefix("s="))
        seen.add((len(made), rounds, made.isalnum()))
    assert seen == {(24, f"i={ROUNDS}", False), (26, "i=4096", True)}


async def test_plain() -> None:
    """R4: name and password, nothing else."""
    login = Login(ALL, look_up)
    assert login.handshake("PLAIN")
    assert await login.authenticate(f"\0alice\0{PASSWORD}".encode()) == b""
    assert login.principal == "alice"
    for message in (
        b"\0alice\0wrong",
        b"\0eve\0" + PASSWORD.encode(),
        b"bob\0alice\0" + PASSWORD.encode(),
        b"alice",
        b"\xff\xfe",
        b"x" * 10_000,
    ):
        refused = Login(ALL, look_up)
        refused.handshake("PLAIN")
        with pytest.raises(LoginFailed):
            await refused.authenticate(message)
        assert refused.principal is None


@pytest.mark.parametrize(
    "message", [b"", b"n,,", b"n,,n=alice", b"y,,n=alice,r=", b"n,,n=,r=abc", b"p=x,,n=a,r=b"]
)
async def test_garbage_is_refused(message: bytes) -> None:
    """R3, R4: whatever comes, it is a failed login."""
    login = Login(ALL, look_up)
    login.handshake("SCRAM-SHA-256")
    with pytest.raises(LoginFailed):
        await login.authenticate(message)
        await login.authenticate(b"c=biws,r=x,p=AAAA")


async def test_a_mechanism_that_is_not_offered() -> None:
    """R4: and none at all."""
    login = Login(ALL[:1], look_up)
    assert not login.handshake("PLAIN")
    with pytest.raises(LoginFailed, match="send SaslHandshake first"):
        await login.authenticate(b"\0alice\0x")


def test_what_is_kept_checks_a_password_and_bounds_hold() -> None:
    """R4: salted by a client or here, and no cheaper than it should be."""
    assert fits(Mechanism.SHA_256, USER[Mechanism.SHA_256], PASSWORD)
    assert not fits(Mechanism.SHA_512, USER[Mechanism.SHA_512], "wrong")
    for salted, salt, rounds in (
        (b"x" * 32, b"salt", 100),
        (b"x" * 32, b"salt", 10**9),
        (b"x" * 32, b"", 8192),
        (b"x" * 5, b"salt", 8192),
    ):
        with pytest.raises(InvalidInput):
            from_salted(Mechanism.SHA_256, salted, salt=salt, rounds=rounds)
    with pytest.raises(InvalidInput):
        make_credential(Mechanism.SHA_256, "")


@pytest.mark.parametrize("size", [0, 11, 1025])
def test_a_salt_that_no_login_takes_is_refused(size: int) -> None:
    """R8: a user with it could never log in, and would hear that the password is wrong."""
    with pytest.raises(InvalidInput, match=f"a salt has 12 to 1024 bytes, not {size}"):
        from_salted(Mechanism.SHA_256, bytes(32), salt=bytes(size), rounds=4096)


async def test_the_shortest_salt_logs_in() -> None:
    """R8: at the limit."""
    salt = b"twelve bytes"
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, 4096)
    kept = {Mechanism.SHA_256: from_salted(Mechanism.SHA_256, salted, salt=salt, rounds=4096)}
    login = Login(ALL, lambda name: kept)
    await scram(login, "SCRAM-SHA-256", "alice", PASSWORD)
    assert login.principal == "alice"
