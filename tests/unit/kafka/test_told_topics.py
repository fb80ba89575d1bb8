"""F61: what clients are told of topics is made and encoded once, until something of it changes."""

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.encoding import encoder
from dovetail.kafka.handlers import Told


def _topic(name: str) -> m.MetadataResponseTopic:
    return m.MetadataResponseTopic(error_code=0, name=name, partitions=())


def _encoded(topic: m.MetadataResponseTopic, version: int) -> bytes:
    pieces: list[bytes] = []
    encoder(m.MetadataResponseTopic, version, version >= 9)(topic, pieces, [])  # type: ignore[arg-type]
    return b"".join(pieces)


def test_a_topic_is_made_anew_when_its_version_or_the_world_changes() -> None:
    told = Told()
    told.begin({1, 2}, None, set())
    first = told.of("id", 7, lambda: _topic("a"))
    told.begin({1, 2}, None, set())
    assert told.of("id", 7, lambda: _topic("b")) is first
    assert told.of("id", 8, lambda: _topic("c")).name == "c"
    told.begin({1}, None, set())
    assert told.of("id", 8, lambda: _topic("d")).name == "d"


def test_a_topic_is_encoded_once_in_each_version() -> None:
    topic = _topic("orders")
    for version in (1, 9, 12):
        assert _encoded(topic, version) == _encoded(_topic("orders"), version)
        assert _encoded(topic, version) is not None
    assert set(topic.encodings) == {1, 9, 12}
    assert _encoded(topic, 1) != _encoded(topic, 12)
