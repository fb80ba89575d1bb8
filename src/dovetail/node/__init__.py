"""The broker room: one node, composed of the rooms below, with its health and its metrics."""

from dovetail.node.node import Endpoints, Node
from dovetail.node.serving import serve

__all__ = ["Endpoints", "Node", "serve"]
