"""The listeners: ports, access, the node behind them, its advertised address, its clock."""

import asyncio
import errno
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.addresses import Address, parse_addresses
from dovetail.admin.kafka import CONNECT_S_MAX, PORT_DEFAULT, Kafka
from dovetail.cli.doctor.finding import Finding, failed, ok, skipped, warning
from dovetail.cli.program import program
from dovetail.clock import SystemClock
from dovetail.errors import DovetailError, InvalidSetting, Unreachable
from dovetail.wire.probe import probe

if TYPE_CHECKING:
    from dovetail.cli.options import Target
    from dovetail.settings import Settings


@dataclass(frozen=True, slots=True)
class PortFact:
    """An address that a node would listen on: free, or why not."""

    what: str
    setting: str
    host: str
    port: int
    error: str = ""
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class AccessFact:
    """Who may use the Kafka listener; `error` if its certificate cannot be used."""

    host: str
    tls: bool
    login: bool
    authorize: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Advertised:
    """One broker at its advertised address; `error` if that cannot be reached."""

    number: int
    address: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class NodeFact:
    """Who answers at the address; `named` if somebody chose that address on purpose."""

    bootstrap: str
    named: bool
    brokers: tuple[Advertised, ...] = ()
    #: Addresses of the list that do not answer, with the reason, while others do.
    silent: tuple[str, ...] = ()
    nobody: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class ClockFact:
    """The node's clock less ours, known up to half the round trip."""

    offset_ms: float = 0.0
    uncertain_ms: float = 0.0
    error: str = ""


def gather_port(what: str, setting: str, host: str, port: int) -> PortFact:
    """Tries to bind the address, and releases it again."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        return PortFact(what, setting, host, port, said, error.errno == errno.EADDRINUSE)
    return PortFact(what, setting, host, port)


def judge_port(fact: PortFact, *, node_answers: bool) -> Finding:
    """Free for a node, or taken by the one that answers."""
    check, where = f"port for {fact.what}", f"{fact.host}:{fact.port}"
    if not fact.error:
        free = "any free port" if fact.port == 0 else where
        return ok(check, f"{free} can be taken")
    if fact.in_use and node_answers:
        return ok(check, f"{where} is taken, by the node that answers")
    if fact.in_use:
        return failed(
            check,
            f"{where} is taken by something that is not a node",
            fix=f"stop it (`ss -ltnp 'sport = :{fact.port}'` shows it), or set {fact.setting}.port",
        )
    return failed(
        check,
        f"{where} cannot be taken: {fact.error}",
        fix=f"set {fact.setting}.host to an address of this machine, {fact.setting}.port to one "
        "from 1024 on",
    )


def gather_access(settings: "Settings") -> AccessFact:
    """Reads the settings, and loads the certificate as a node would."""
    security, error = settings.security, ""
    try:
        security.server_tls()
    except InvalidSetting as failure:
        error = str(failure)
    return AccessFact(
        settings.kafka.host, security.tls, bool(security.mechanisms), security.authorize, error
    )


def judge_access(fact: AccessFact) -> Finding:
    """Whether anybody in the network may connect."""
    how = "see docs/security.md: security.tls_certificate, security.login, security.authorize"
    if fact.error:
        return failed("access", fact.error, fix="correct security.tls_certificate and .tls_key")
    if _is_loopback(fact.host):
        return ok("access", f"{fact.host}: only this machine can connect")
    if not fact.login:
        exposed = "" if fact.tls else ", in clear text"
        return warning(
            "access",
            f"everybody who reaches {fact.host} may read and change everything{exposed}",
            fix=how,
        )
    if not fact.tls:
        return warning("access", "clients log in, but send everything in clear text", fix=how)
    rules = "by access rules" if fact.authorize else "and every user may do everything"
    return ok("access", f"TLS and login, {rules}")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def gather_node(kafka: Kafka, *, named: bool) -> NodeFact:
    """Asks for the brokers, and tries each at its advertised address."""
    try:
        kafka.check()
    except Unreachable as error:
        return NodeFact(kafka.bootstrap, named, nobody=str(error).partition("\n")[0].rstrip("."))
    except DovetailError as error:
        return NodeFact(kafka.bootstrap, named, error=str(error))
    try:
        found = kafka.metadata().brokers
    except DovetailError as error:
        return NodeFact(kafka.bootstrap, named, error=str(error).partition("\n")[0])
    brokers = tuple(_reach(number, address) for number, address in sorted(found.items()))
    given = parse_addresses(kafka.bootstrap, what="bootstrap address", port_default=PORT_DEFAULT)
    tried = [_reach(-1, address) for address in given]
    silent = tuple(f"{one.address} ({one.error})" for one in tried if one.error)
    return NodeFact(kafka.bootstrap, named, brokers, silent)


def _reach(number: int, address: Address) -> Advertised:
    try:
        with socket.create_connection(address, CONNECT_S_MAX):
            return Advertised(number, str(address))
    except OSError as error:
        return Advertised(number, str(address), (error.strerror or str(error)).lower())


def judge_node(fact: NodeFact) -> list[Finding]:
    """Whether a node answers, and whether clients reach the addresses that it advertises."""
    if fact.nobody and not fact.named:
        return [
            warning(
                "node",
                f"none runs here ({fact.nobody})",
                fix=f"start one: {program()} up; or name one elsewhere with --bootstrap",
            )
        ]
    if fact.nobody:
        return [
            failed(
                "node",
                fact.nobody,
                fix="start the node, or correct --bootstrap (client.bootstrap)",
            )
        ]

    if fact.error:
        return [
            failed(
                "node",
                fact.error,
                fix="check that a Kafka port listens there, and read the log of the node",
            )
        ]

    count = len(fact.brokers)
    if fact.silent:
        answer = failed(
            "node",
            f"does not answer: {', '.join(fact.silent)}; {count} of the cluster's brokers do",
            fix="start it again, or take it out of --bootstrap (client.bootstrap)",
        )
        return [answer, _judge_advertised(fact.brokers)]
    answer = ok("node", f"{fact.bootstrap} answers; {count} broker{'' if count == 1 else 's'}")
    return [answer, _judge_advertised(fact.brokers)]


def _judge_advertised(brokers: tuple[Advertised, ...]) -> Finding:
    wrong = [broker for broker in brokers if broker.error]
    advertised = ", ".join(broker.address for broker in brokers)
    if not brokers:
        return failed(
            "advertised address",
            "the node knows no broker: no client can produce or consume",
            fix="check that a node with the role broker runs",
        )
    if wrong:
        named = "; ".join(f"broker {b.number} at {b.address}: {b.error}" for b in wrong)
        return failed(
            "advertised address",
            f"brokers advertise addresses that cannot be reached from here: {named}",
            fix="set kafka.advertised_host (--advertised-host) on that node to a name or address "
            "that clients reach",
        )
    return ok("advertised address", f"brokers advertise {advertised}, which is reachable")


def gather_clock(target: "Target") -> ClockFact:
    """Asks the first node that answers for its time, over its own protocol."""
    fact = ClockFact(error="no address")
    addresses = parse_addresses(
        target.bootstrap, what="bootstrap address", port_default=PORT_DEFAULT
    )
    for address in addresses:
        try:
            return asyncio.run(_clock_at(address, target))
        except (DovetailError, TimeoutError, OSError) as error:
            fact = ClockFact(error=str(error) or "no answer in time")
    return fact


async def _clock_at(address: Address, target: "Target") -> ClockFact:
    from dovetail.cli.timeline_client import login_of

    login = login_of(target)
    async with asyncio.timeout(target.timeout_s):
        probed = await probe(address, client_id="dovetail-doctor", clock=SystemClock(), login=login)
    # Both clocks give whole milliseconds, and cut off the rest.
    half_ms = probed.latency_ms / 2
    return ClockFact(probed.theirs_ms - (probed.sent_ms + half_ms), half_ms + 1)


def judge_clock(fact: ClockFact, *, drift_ms_max: int) -> Finding:
    """Whether the clocks agree well enough for due times."""
    if fact.error:
        return skipped("clock", f"cannot read the node's clock: {fact.error}")
    certain_ms = max(0.0, abs(fact.offset_ms) - fact.uncertain_ms)
    side = "ahead of" if fact.offset_ms > 0 else "behind"
    text = (
        f"the node is {abs(fact.offset_ms):,.1f} ms {side} this machine "
        f"(known up to {fact.uncertain_ms:,.1f} ms)"
    )
    fix = "synchronise both clocks: run chrony or systemd-timesyncd on both machines"
    if certain_ms > drift_ms_max:
        return failed("clock", f"{text}: above timeline.drift_ms_max, where pushing stops", fix=fix)
    if certain_ms > drift_ms_max / 4:
        return warning("clock", f"{text}: on the way to timeline.drift_ms_max", fix=fix)
    return ok("clock", text)
