"""Ledgers on several storage nodes: the quorum protocol."""
