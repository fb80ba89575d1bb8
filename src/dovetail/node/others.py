"""Private calls to the other brokers of the cluster."""

from typing import NamedTuple

from dovetail.addresses import Address
from dovetail.coordination.membership import Membership
from dovetail.log.broker_peers import BrokerPeers
from dovetail.log.ends.calls import CALLS as ENDS_CALLS
from dovetail.log.ends.calls import EndsBrokers, NoEndsBrokers, RemoteEndsBrokers
from dovetail.log.share.brokers import NoShareBrokers, RemoteShareBrokers, ShareBrokers
from dovetail.log.share.calls import CALLS as SHARE_CALLS
from dovetail.log.transactions.brokers import Brokers, NoOthers, RemoteBrokers
from dovetail.log.transactions.calls import CALLS as TRANSACTION_CALLS
from dovetail.node.security import Security
from dovetail.wire.login import ClientLogin
from dovetail.wire.peer import PeerSettings


class Others(NamedTuple):
    """The other brokers, by what they are asked about."""

    transactions: Brokers
    shares: ShareBrokers
    ends: EndsBrokers


def others(membership: Membership | None, security: Security, client_id: str) -> Others:
    """Those of a cluster; a node alone has none."""
    if membership is None:
        return Others(NoOthers(), NoShareBrokers(), NoEndsBrokers())

    def address_of(node: int) -> Address | None:
        member = membership.members().get(node)
        return None if member is None else Address(member.host, member.port)

    settings = PeerSettings(refused_ms_max=0, login=ClientLogin(security.client_tls))

    def peers(service: str) -> BrokerPeers:
        return BrokerPeers(address_of, service, client_id=client_id, settings=settings)

    return Others(
        RemoteBrokers(peers(TRANSACTION_CALLS.service)),
        RemoteShareBrokers(peers(SHARE_CALLS.service)),
        RemoteEndsBrokers(peers(ENDS_CALLS.service)),
    )
