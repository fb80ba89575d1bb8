"""Reads Java's keystores, JKS or PKCS12, as PEM.

A file's first bytes show its format; Java's own reader also goes by them, whatever the declared
type. A JKS has two kinds of entries, a private key with its chain and a trusted certificate, and a
checksum over everything that includes the password. Its keys are hidden by a method of its own: a
stream of SHA-1 sums of the password (`_uncovered`). Anyone with the file and the password gets the
key; the strength of that method is up to Java.

Pure: bytes in, PEM out. Raises `InvalidInput`.
"""

import base64
import hashlib
import struct
from dataclasses import dataclass, field
from itertools import pairwise

from dovetail.errors import InvalidInput, Unavailable

_MAGIC = 0xFEEDFEED
_KEY_ENTRY, _CERTIFICATE_ENTRY = 1, 2
_SUM_BYTES = 20
_WHITENER = b"Mighty Aphrodite"


@dataclass(slots=True)
class Keystore:
    """What was in one: PEM, empty where there was none."""

    authorities: str = ""
    chain: str = ""
    key: str = field(default="", repr=False)


def opened(
    data: bytes, kind: str, password: str | None, *, what: str, key_password: str | None = None
) -> Keystore:
    """What a JKS or PKCS12 holds; `what` names it in errors. Raises `InvalidInput`."""
    if data[:4] == _MAGIC.to_bytes(4, "big"):
        try:
            return _jks(data, password, key_password or password, what)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{what} is not a complete JKS: {error}") from error
    return _pkcs12(data, kind, password, what)


def _jks(data: bytes, password: str | None, key_password: str | None, what: str) -> Keystore:
    body, end = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if password is not None:
        spelled = password.encode("utf-16-be")
        if hashlib.sha1(spelled + _WHITENER + body, usedforsecurity=False).digest() != end:
            raise InvalidInput(f"{what} was changed, or its password is wrong")

    at = 12
    version, count = struct.unpack_from(">II", body, 4)
    store = Keystore()

    def take(size_bytes: int) -> bytes:
        nonlocal at
        at += size_bytes
        if at > len(body):
            raise IndexError("it ends early")
        return body[at - size_bytes : at]

    def take_certificate() -> str:
        if version == 2:
            take(int.from_bytes(take(2), "big"))
        return _pem("CERTIFICATE", take(int.from_bytes(take(4), "big")))

    for _ in range(count):
        tag = int.from_bytes(take(4), "big")
        # The name of the entry, and when it was made.
        take(int.from_bytes(take(2), "big"))
        take(8)
        if tag == _CERTIFICATE_ENTRY:
            store.authorities += take_certificate()
        elif tag == _KEY_ENTRY:
            covered = take(int.from_bytes(take(4), "big"))
            chain = [take_certificate() for _ in range(int.from_bytes(take(4), "big"))]
            if key_password is not None and not store.key:
                store.key = _pem("PRIVATE KEY", _uncovered(covered, key_password, what))
                store.chain = "".join(chain)
        else:
            raise InvalidInput(f"{what} has an entry of kind {tag}, which JKS does not define")
    return store


def _uncovered(covered: bytes, password: str, what: str) -> bytes:
    """A private key of a JKS: behind the salt it is XORed with SHA-1 sums, each of the one before.

    The length of what stands before is that of the OCTET STRING at the end, found from its header.
    """
    hidden = _octets(covered)
    salt, mixed, check = (
        hidden[:_SUM_BYTES],
        hidden[_SUM_BYTES:-_SUM_BYTES],
        hidden[-_SUM_BYTES:],
    )
    spelled, last, stream = password.encode("utf-16-be"), salt, b""
    while len(stream) < len(mixed):
        last = hashlib.sha1(spelled + last, usedforsecurity=False).digest()
        stream += last
    plain = bytes(one ^ other for one, other in zip(mixed, stream, strict=False))
    if hashlib.sha1(spelled + plain, usedforsecurity=False).digest() != check:
        raise InvalidInput(f"{what}: the password of its key is wrong (ssl.key.password)")
    return plain


def _octets(der: bytes) -> bytes:
    """What the second part of an EncryptedPrivateKeyInfo holds: behind the algorithm."""
    _, inner, _ = _element(der, 0)
    _, _, behind = _element(der, inner)
    _, start, end = _element(der, behind)
    return der[start:end]


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The tag of a DER element, where its content begins, and where it ends."""
    size, start = der[at + 1], at + 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[at + 2 : start], "big")
    if start + size > len(der):
        raise IndexError("a key ends early")
    return der[at], start, start + size


def _pkcs12(data: bytes, kind: str, password: str | None, what: str) -> Keystore:
    try:
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            pkcs12,
        )
    except ImportError as error:
        raise Unavailable(
            f"{what} is a PKCS12; reading it needs: pip install 'dovetailmq[certificates]'"
        ) from error
    try:
        found = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        raise InvalidInput(f"{what} is not a {kind}, or its password is wrong: {error}") from error

    others = [one.certificate.public_bytes(Encoding.PEM).decode() for one in found.additional_certs]
    if found.key is None or found.cert is None:
        return Keystore(authorities="".join(others))
    key = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    own = found.cert.certificate.public_bytes(Encoding.PEM).decode()
    return Keystore("".join(others), own + "".join(others), key)


def _pem(what: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    cuts = [*range(0, len(text), 64), len(text)]
    lines = [text[low:high] for low, high in pairwise(cuts)]
    return "\n".join([f"-----BEGIN {what}-----", *lines, f"-----END {what}-----", ""])
