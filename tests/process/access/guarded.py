"""A node with everything on: TLS, HTTPS, certificates, login and rules."""

from pathlib import Path

from tests.conftest import RunningNode
from tests.process.access.certificates import Authority

#: Of the admin.
PASSWORD = "correct horse battery staple"


def guarded_node(folder: Path, authority: Authority, **settings: str) -> RunningNode:
    """Not started yet."""
    files = authority.issue("node-1")
    (folder / "password").write_text(f"{PASSWORD}\n")
    guards = {
        "security_tls_certificate": files.certificate,
        "security_tls_key": files.key,
        "security_tls_ca": authority.file,
        "security_tls_clients": "optional",
        "security_login": "scram-sha-512,scram-sha-256,plain",
        "security_authorize": "true",
        "security_admin_password_file": str(folder / "password"),
        "http_tls_certificate": files.certificate,
        "http_tls_key": files.key,
        **settings,
    }
    return RunningNode(folder / "data", guards)


def admin_settings(authority: Authority, how: str = "SCRAM-SHA-512") -> dict[str, str]:
    """How the admin comes in, by librdkafka's names."""
    return {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": authority.file,
        "sasl.mechanism": how,
        "sasl.username": "admin",
        "sasl.password": PASSWORD,
    }
