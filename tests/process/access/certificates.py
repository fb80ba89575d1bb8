"""An authority, and certificates of nodes and clients, for tests: ours, with text for paths."""

from dataclasses import dataclass
from pathlib import Path

from dovetail.access import certificates


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate and its key."""

    certificate: str
    key: str


class Authority:
    """Signs certificates; `file` is what others trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = certificates.Authority(folder)
        self.file = str(self._authority.file)

    def issue(self, name: str) -> Certificate:
        """A certificate for this machine whose common name is `name`, in place of an older one."""
        for ending in ("pem", "key"):
            (self._folder / f"{name}.{ending}").unlink(missing_ok=True)
        made = self._authority.issue(name, hosts=("127.0.0.1", "localhost"))
        return Certificate(str(made.certificate), str(made.key))
