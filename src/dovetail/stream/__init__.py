"""The shared stream."""
