"""Access (R4): who a client is, and what it may do.

    login.py          authentication: SASL SCRAM and PLAIN, one exchange for each connection
    credentials.py    what is stored of a password: enough to check it, not enough to use it
    rules.py          what a principal may do; pure
    registry.py       users and rules in the coordination service, watched by every node
    quotas.py         how much a user or a client may demand of a broker
    guard.py          binds rules to a principal, for handlers
    authenticator.py  the identity of a connection's client
    certificates.py   a certificate authority, for trials; needs the extra `certificates`

Switched off, everything is allowed and nothing is looked up. Switched on, whatever no rule allows
is refused; a rule that denies overrides any that allows; admins may do everything.
"""

from dovetail.access.authenticator import Authenticator
from dovetail.access.credentials import Credential, Mechanism, make_credential
from dovetail.access.guard import EVERYTHING, Access, Guard
from dovetail.access.login import Login, LoginFailed
from dovetail.access.quotas import Quotas
from dovetail.access.registry import AccessRegistry
from dovetail.access.rules import (
    CLUSTER_NAME,
    Filter,
    Kind,
    Operation,
    Pattern,
    Permission,
    Rule,
    timeline_name,
)

__all__ = [
    "CLUSTER_NAME",
    "EVERYTHING",
    "Access",
    "AccessRegistry",
    "Authenticator",
    "Credential",
    "Filter",
    "Guard",
    "Kind",
    "Login",
    "LoginFailed",
    "Mechanism",
    "Operation",
    "Pattern",
    "Permission",
    "Quotas",
    "Rule",
    "make_credential",
    "timeline_name",
]
