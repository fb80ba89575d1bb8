"""A cluster on this machine."""
