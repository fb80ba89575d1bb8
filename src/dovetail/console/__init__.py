"""The console: what a node shows over HTTP, and what operators can change there.

For probes: `/livez` (should the process be restarted?) and `/readyz` (should it get clients?).
For Prometheus: `/metrics`. For programs: the API under `/v1`, described by `/v1/openapi.json` and
for people by `/docs`. For people: the pages at `/`, which use the same API.

    web/               HTTP: authentication, dispatch, answers, errors
    nouns/             the API: a module for each noun, with its types, handlers and endpoints
    static/            the pages: modules, styles, no build step; a page is a module in app/pages
    desk.py            what handlers use: the node from inside, clients of the cluster
    live.py            documents that are sent again when they change, while somebody watches
    kafka_link.py      the console as a Kafka client of its own cluster
    timeline_link.py   the console as a client of its cluster's timelines
    rates.py           how fast counters grow                                              pure

A new page begins with its noun: an `Endpoint` in `nouns`, a kind of document in `live.py`, a route
in `static/app/router.js` and a module in `static/app/pages`. The answers come from `admin`, which
asks the cluster as any client does, so every broker's console answers for the whole cluster;
`node/insight.py` adds what only the node itself knows. Nothing in the node waits for the console,
and without a reader nothing of it runs, except that the node always keeps the last hour in figures
(`node/history`).
"""

from dovetail.console.desk import ServedNode
from dovetail.console.web.http import Console, http_of, serve_http

__all__ = ["Console", "ServedNode", "http_of", "serve_http"]
