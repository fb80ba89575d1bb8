"""The console: what a node shows over HTTP, and what can be done there.

For probes: `/livez` (should the process be restarted?) and `/readyz` (should it get clients?).
For Prometheus: `/metrics`. For programs: the API under `/v1`, described by `/v1/openapi.json` and
for people by `/docs`. For people: the pages at `/`, which use the same API.

    guard        which requests are let in: names, sites, tokens; headers of every answer
    dispatch     what an `Endpoint` declares is decoded, checked, audited and answered
    topics ...   one module for each noun: its types, its handlers, its endpoints
    live         documents that are sent again when they change, while somebody watches
    kafka_link   the console is a Kafka client of its own cluster, and a client of its timelines

Everything that is asked goes through the same doors as every client's requests, so any broker's
console answers for the whole cluster; what only the node itself knows comes from `broker.insight`.
Nothing in the node waits for the console, and without a reader nothing of it runs.
"""

from dovetail.console.desk import ServedNode
from dovetail.console.web.http import Console, http_of, serve_http

__all__ = ["Console", "ServedNode", "http_of", "serve_http"]
