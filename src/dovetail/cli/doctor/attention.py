"""What needs attention in the cluster (`admin/attention.py`), as any client sees it.

Groups, pipelines and dead letters come over Kafka's protocol, timelines over the requests of their
clients, nodes over HTTP. What cannot be asked is skipped, with the reason.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from dovetail.admin import attention
from dovetail.admin.attention import Attention, Facts
from dovetail.admin.facts import KafkaFacts, with_timelines
from dovetail.admin.kafka import Kafka
from dovetail.admin.timelines import list_timelines
from dovetail.cli.doctor.finding import Finding, failed, ok, skipped, warning
from dovetail.cli.timeline_client import ask
from dovetail.errors import DovetailError
from dovetail.node.overseer import ClusterReport

if TYPE_CHECKING:
    from dovetail.cli.options import Target

#: The check of each noun, in the order in which they are shown.
CHECKS = {
    "node": "health",
    "topic": "owners",
    "group": "groups",
    "timeline": "timelines",
    "pipeline": "pipelines",
    "dead": "dead letters",
}


@dataclass(frozen=True, slots=True)
class AttentionFact:
    """What was found; how many of each noun there are; nouns that could not be asked about."""

    findings: tuple[attention.Finding, ...] = ()
    counted: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)


def gather_attention(
    kafka: Kafka, target: "Target", nodes: ClusterReport | str, *, sample_s: float
) -> AttentionFact:
    """Looks now and `sample_s` later; `nodes` is what an overseer says, or why nobody does."""
    kafka_facts, watching, began_ms = KafkaFacts(_now_ms), Attention(watched_ms_min=0), _now_ms()
    first, _ = _look(kafka_facts, kafka, target, nodes)
    watching.look(first, now_ms=_now_ms())
    time.sleep(sample_s)
    facts, silent = _look(kafka_facts, kafka, target, nodes)
    found = watching.look(facts, now_ms=_now_ms())

    counted = {
        "node": len(facts.nodes),
        "group": len(facts.groups),
        "timeline": len(facts.timelines),
        "pipeline": len(facts.pipelines),
        "dead": sum(one.count or 0 for one in facts.dead),
    }
    # What was first seen just now began before, nobody here knows when.
    told = (
        one if (one.since_ms or 0) < began_ms else msgspec.structs.replace(one, since_ms=None)
        for one in found
    )
    return AttentionFact(tuple(told), counted, silent)


def _look(
    kafka_facts: KafkaFacts, kafka: Kafka, target: "Target", nodes: ClusterReport | str
) -> tuple[Facts, dict[str, str]]:
    silent: dict[str, str] = {}
    facts = Facts()
    if isinstance(nodes, ClusterReport):
        facts = replace(facts, nodes=nodes.nodes, missing=nodes.missing)
    else:
        silent["node"] = nodes

    try:
        groups, pipelines, dead = kafka_facts.look(kafka)
        facts = replace(facts, groups=groups, pipelines=pipelines, dead=dead)
    except DovetailError as error:
        silent |= dict.fromkeys(("group", "pipeline", "dead"), _line(error))
    try:
        facts = with_timelines(facts, ask(target, list_timelines))
    except DovetailError as error:
        silent["timeline"] = _line(error)
    return facts, silent


def judge_attention(fact: AttentionFact) -> Iterator[Finding]:
    """One row for each finding, and one for each noun about which there is none."""
    for noun, check in CHECKS.items():
        found = [one for one in fact.findings if one.noun == noun]
        for one in found:
            since = "" if one.since_ms is None else f", since {_time(one.since_ms)}"
            say = failed if one.grade == "bad" else warning
            yield say(check, f"{one.where}: {one.what}{since}", fix=one.todo)
        if noun in fact.skipped:
            yield skipped(check, fact.skipped[noun])
        elif not found and noun in fact.counted:
            count = fact.counted[noun]
            yield ok(check, f"{count:,}, all well" if count else "none")


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(" ", "seconds")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _line(error: DovetailError) -> str:
    return str(error).partition("\n")[0]
