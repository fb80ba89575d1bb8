"""A certificate authority, with certificates for nodes and clients: for trials, small clusters.

The authority is a folder: `ca.pem`, which everybody trusts, and `ca.key`, which signs. Beside them
lie `NAME.pem` (the chain) and `NAME.key` for each name that it has signed. The common name of a
client's certificate is its user, and of a node's the name in `security.nodes`.

Keys are readable by their owner alone, written whole or not at all, and never replaced: for another
certificate of the same name use another folder, or delete the old one first.

Not here: revoking and renewing. Anyone who needs these has an authority already.
"""

import datetime
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dovetail.durable_files import replace_file
from dovetail.errors import Damaged, InvalidInput, Refused

#: Browsers and some clients refuse certificates of more than 825 days.
DAYS_DEFAULT = 365
DAYS_MAX = 825
AUTHORITY_DAYS = 3650

#: Of a common name, by RFC 5280 (ub-common-name).
NAME_CHARACTERS_MAX = 64

#: Clocks of other machines may be behind this one.
_EARLY = datetime.timedelta(hours=1)

#: Names of the authority's own files.
_AUTHORITY = "ca"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; `file` is what others trust."""

    def __init__(self, folder: Path) -> None:
        """The authority in this folder, which is made if there is none.

        Raises `Damaged` for files that are no authority, `OSError` for a folder that cannot be
        written.
        """
        self._folder = folder
        self.file = folder / f"{_AUTHORITY}.pem"
        key_file = folder / f"{_AUTHORITY}.key"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            if not self.file.exists():
                self._make(key_file)
            self._certificate = x509.load_pem_x509_certificate(self.file.read_bytes())
            key = _load_key(key_file)
        except (ValueError, TypeError, FileNotFoundError) as error:
            raise Damaged(
                f"{self.file} and {key_file} are not an authority: {error}; restore them, or "
                "choose another folder"
            ) from error
        if key.public_key() != self._certificate.public_key():
            raise Damaged(f"{key_file} is not the key of {self.file}")
        self._key = key

    def _make(self, key_file: Path) -> None:
        # The certificate comes last: a folder that has it has the key too, and a key without one
        # was left by a start that did not end.
        if not key_file.exists():
            replace_file(key_file, _private(ec.generate_private_key(ec.SECP256R1())), mode=0o600)
        key = _load_key(key_file)
        name = _name("Dovetail test authority")
        usage = x509.BasicConstraints(ca=True, path_length=0)
        signs = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        made = (
            _builder(key, subject=name, issuer=name, days=AUTHORITY_DAYS)
            .add_extension(usage, critical=True)
            .add_extension(signs, critical=True)
            .sign(key, hashes.SHA256())
        )
        replace_file(self.file, _public(made), mode=0o644)

    def issue(
        self, name: str, *, hosts: tuple[str, ...] = (), days: int = DAYS_DEFAULT
    ) -> Certificate:
        """A certificate whose common name is `name`, valid for `hosts` (names and addresses).

        Raises `InvalidInput` for a name or host that no certificate takes, `Refused` if the folder
        has one of this name.
        """
        _check_name(name)
        if not 1 <= days <= DAYS_MAX:
            raise InvalidInput(f"a certificate can be valid for 1 to {DAYS_MAX} days, not {days}")
        files = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        if files.certificate.exists():
            raise Refused(
                f"{files.certificate} exists; to replace it, delete it and {files.key.name} first"
            )

        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(key, subject=_name(name), issuer=self._certificate.subject, days=days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        made = builder.sign(self._key, hashes.SHA256())

        replace_file(files.key, _private(key), mode=0o600)
        replace_file(files.certificate, _public(made) + self.file.read_bytes(), mode=0o644)
        return files


def _builder(
    key: ec.EllipticCurvePrivateKey, *, subject: x509.Name, issuer: x509.Name, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _check_name(name: str) -> None:
    """The name is a user's and a file's."""
    plain = name.isascii() and name.isprintable() and not set(name) & set("/\\,")
    if not plain or not 1 <= len(name) <= NAME_CHARACTERS_MAX or name[0] in ".- ":
        raise InvalidInput(
            f"{name!r} is not a name for a certificate; use 1 to {NAME_CHARACTERS_MAX} letters, "
            "digits, dots and hyphens"
        )
    if name == _AUTHORITY:
        raise InvalidInput(f"{name!r} is reserved for the authority's own files; choose another")


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        name = text.encode("idna").decode()
    except UnicodeError:
        name = ""
    # No last part is a number: 999.1.1.1 is a mistyped address, which no client would accept.
    if not re.fullmatch(r"(\*\.)?([A-Za-z0-9_-]+\.)*(?![0-9]+$)[A-Za-z0-9_-]+", name):
        raise InvalidInput(f"{text!r} is neither a host name nor an address")
    return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the key is not of a kind that this program makes")
    return key


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _public(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
