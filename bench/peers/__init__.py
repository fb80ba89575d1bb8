"""Other servers at the same work, each through its own Python client, on a free port of its own."""
