"""The conformance suite on the store in memory, which is the fake for users."""

from tests.unit.timeline.store_conformance import StoreConformance


class TestMemory(StoreConformance):
    """With the plain fixtures."""
