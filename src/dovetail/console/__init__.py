"""The console: what a node shows over HTTP.

For probes: `/livez` (should the process be restarted?) and `/readyz` (should it get clients?).
For Prometheus: `/metrics`. For a person: `/`, which names them. All of it only reads; nothing
here can change a node, and nothing in the node waits for it.
"""

from dovetail.console.http import NodeStatus, create_app, http_of, serve_http

__all__ = ["NodeStatus", "create_app", "http_of", "serve_http"]
