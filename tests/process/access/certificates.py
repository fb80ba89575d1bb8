"""An authority, and certificates of nodes and clients, for tests."""

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate and its key."""

    certificate: str
    key: str


class Authority:
    """Signs certificates; `file` is what others trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.file = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.file)

    def issue(self, name: str) -> Certificate:
        """A certificate for this machine whose common name is `name`."""
        made = self._authority.issue_cert("127.0.0.1", "localhost", common_name=name)
        files = Certificate(
            str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key.pem")
        )
        made.private_key_pem.write_to_path(files.key)
        for at, blob in enumerate(made.cert_chain_pems):
            blob.write_to_path(files.certificate, append=at > 0)
        return files
