"""Certificates that are renewed while a node runs, and what stands in the way for a moment."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from dovetail import tls_files
from dovetail.access.certificates import Authority
from dovetail.errors import InvalidSetting
from dovetail.settings.security import SecuritySettings
from dovetail.tls_files import TlsFiles, load_certificate


def issue(tmp_path: Path, name: str) -> tuple[bytes, bytes]:
    """A certificate and its key."""
    Authority(tmp_path / "ca").issue(name)
    return tuple((tmp_path / "ca" / f"{name}{end}").read_bytes() for end in (".pem", ".key"))  # type: ignore[return-value]


def shown_by(context: ssl.SSLContext) -> bytes:
    """The certificate that a client is shown."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = [client.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)]
    asked = left[0]
    while left:
        for side in tuple(left):
            try:
                side.do_handshake()
                left.remove(side)
            except ssl.SSLWantReadError:
                continue
    shown = asked.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def leaf(pair: tuple[bytes, bytes]) -> bytes:
    """The first certificate of a chain."""
    end = b"-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert((pair[0].partition(end)[0] + end).decode())


class Node:
    """What a node does with the files."""

    def __init__(self, folder: Path, pair: tuple[bytes, bytes]) -> None:
        self.certificate, self.key = folder / "node.pem", folder / "node.key"
        self.put(pair)
        self.files = TlsFiles(str(self.certificate), str(self.key))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_certificate(self.context, str(self.certificate), str(self.key))
        self.files.keep([self.context])

    def put(self, pair: tuple[bytes, bytes]) -> None:
        self.certificate.write_bytes(pair[0])
        self.key.write_bytes(pair[1])

    def look(self) -> bytes:
        self.files.look()
        return shown_by(self.context)


def test_files_that_could_not_be_read_for_a_moment_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R4, R8: no file handle was left, or the rights came after the file: nothing changes about the
    files any more, and the old certificate served until it had expired."""
    first, second = issue(tmp_path, "first"), issue(tmp_path, "second")
    node = Node(tmp_path, first)
    assert node.look() == leaf(first)

    node.put(second)
    with monkeypatch.context() as patched:

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        patched.setattr(tls_files, "load_certificate", refuse)
        for _ in range(3):
            assert node.look() == leaf(first)
    assert caplog.text.count("cannot be used yet") == 1
    assert node.look() == leaf(second)


def test_a_renewal_half_way_changes_nothing(tmp_path: Path) -> None:
    """R4: a key of another certificate, a file that is cut, one that is gone."""
    first, second = issue(tmp_path, "first"), issue(tmp_path, "second")
    node = Node(tmp_path, first)
    for pair in ((second[0], first[1]), (second[0][:200], second[1]), (b"", b"")):
        node.put(pair)
        assert node.look() == leaf(first)
    node.key.unlink()
    assert node.look() == leaf(first)
    node.put(second)
    assert node.look() == leaf(second)


def test_nobody_is_asked_for_a_pass_phrase(tmp_path: Path) -> None:
    """R4, F53: OpenSSL asks at the terminal, and the event loop stood still until an answer."""
    first, second = issue(tmp_path, "first"), issue(tmp_path, "second")
    node = Node(tmp_path, first)
    key = serialization.load_pem_private_key(second[1], None)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    node.put((second[0], secret))
    assert node.look() == leaf(first)
    with pytest.raises(InvalidSetting, match="protected by a pass phrase"):
        SecuritySettings(tls_certificate=str(node.certificate), tls_key=str(node.key)).server_tls()
