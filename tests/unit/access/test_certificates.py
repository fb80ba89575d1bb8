"""An authority of one's own: what it signs is believed, and what it cannot sign is refused."""

import ssl
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.access.certificates import DAYS_MAX, Authority
from dovetail.cli.app import app
from dovetail.errors import Damaged, InvalidInput, Refused


def shake_hands(ca: Path, node: Authority, *, host: str) -> None:
    """A whole handshake in memory, with a certificate on both sides. Raises `ssl.SSLError`."""
    at_node = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    at_client = ssl.create_default_context(cafile=str(ca))
    for context, name in ((at_node, "node-1"), (at_client, "shop")):
        folder = node.file.parent
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    at_node.load_verify_locations(node.file)
    at_node.verify_mode = ssl.CERT_REQUIRED

    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = at_client.wrap_bio(back, there, server_hostname=host)
    server = at_node.wrap_bio(there, back, server_side=True)
    left = [client, server]
    while left:
        for side in tuple(left):
            try:
                side.do_handshake()
                left.remove(side)
            except ssl.SSLWantReadError:
                continue
    subject = server.getpeercert()
    assert subject is not None
    assert ("commonName", "shop") in [pair for row in subject["subject"] for pair in row]


def test_nodes_and_clients_believe_each_other(tmp_path: Path) -> None:
    """F83, R4: for the hosts of the node, by its own authority, and by no other."""
    authority = Authority(tmp_path / "ours")
    authority.issue("node-1", hosts=("queue.example.org", "127.0.0.1"))
    authority.issue("shop")
    for host in ("queue.example.org", "127.0.0.1"):
        shake_hands(authority.file, authority, host=host)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(authority.file, authority, host="elsewhere.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(Authority(tmp_path / "theirs").file, authority, host="127.0.0.1")


def test_the_second_call_finds_the_same_authority(tmp_path: Path) -> None:
    """R4: also after one that was killed behind its key; keys are for their owner alone."""
    first = Authority(tmp_path)
    (tmp_path / "ca.pem").unlink()
    key = (tmp_path / "ca.key").read_bytes()
    again = Authority(tmp_path)
    assert (tmp_path / "ca.key").read_bytes() == key
    again.issue("shop")
    assert first.file == again.file
    for name in ("ca.key", "shop.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    with pytest.raises(Refused, match="exists; to replace it"):
        Authority(tmp_path).issue("shop")


@pytest.mark.parametrize(
    "name", ["", "ca", "a/b", "..", "a,b", "-a", "a\0", "ä", "\ud800", "x" * 65]
)
def test_a_name_that_no_certificate_takes_is_refused(tmp_path: Path, name: str) -> None:
    """R4: before anything is written."""
    authority = Authority(tmp_path)
    with pytest.raises(InvalidInput):
        authority.issue(name)
    assert {path.name for path in tmp_path.iterdir()} == {"ca.pem", "ca.key"}


@pytest.mark.parametrize(
    "host",
    ["", "a b", "a\0", "x" * 64 + ".org", "\ud800", "a..b", "1.2.3.4/8", "999.1.1.1", "1.2.3"],
)
def test_a_host_that_is_none_is_refused(tmp_path: Path, host: str) -> None:
    """R4: before anything is written."""
    with pytest.raises(InvalidInput, match="neither a host name nor an address"):
        Authority(tmp_path).issue("node-1", hosts=(host,))
    assert not (tmp_path / "node-1.key").exists()


@pytest.mark.parametrize("days", [-1, 0, DAYS_MAX + 1])
def test_days_have_a_limit(tmp_path: Path, days: int) -> None:
    """R4: a certificate that clients would refuse is not made."""
    with pytest.raises(InvalidInput, match="days"):
        Authority(tmp_path).issue("node-1", days=days)


def test_files_that_are_no_authority_are_left_alone(tmp_path: Path) -> None:
    """R4: a foreign file, and the key of another authority."""
    Authority(tmp_path / "other")
    Authority(tmp_path / "mixed")
    (tmp_path / "mixed" / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(Damaged, match="is not the key of"):
        Authority(tmp_path / "mixed")
    (tmp_path / "ca.pem").write_text("nonsense")
    with pytest.raises(Damaged, match="not an authority"):
        Authority(tmp_path)
    assert (tmp_path / "ca.pem").read_text() == "nonsense"


def test_the_command_says_where_the_files_are(tmp_path: Path) -> None:
    """U4: for people and for programs; a folder that cannot be written is an error in words."""
    runner, folder = CliRunner(), tmp_path / "certificates"
    words = ["certificates", "node", "node-1", "--folder", str(folder), "--json"]
    done = runner.invoke(app, words)
    assert done.exit_code == 0, done.output
    assert str(folder / "node-1.pem") in done.output
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = runner.invoke(app, ["certificates", "client", "a", "--folder", str(blocked / "x")])
    assert done.exit_code != 0
    assert "cannot write to" in done.output
