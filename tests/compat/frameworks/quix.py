"""Quix Streams: counts by key in a store that lies in a compacted topic.

quix.py BOOTSTRAP NAME GUARANTEE FOLDER; the input is NAME-in, the counts go to NAME-out.
"""

import sys

from quixstreams import Application, State

RECORDS = 100


def count(_value: str, state: State) -> int:
    seen = int(state.get("seen", 0)) + 1
    state.set("seen", seen)
    return seen


bootstrap, name, guarantee, folder = sys.argv[1:]
application = Application(
    broker_address=bootstrap,
    consumer_group=name,
    auto_offset_reset="earliest",
    processing_guarantee=guarantee,
    state_dir=folder,
    commit_interval=0.2,
    loglevel="WARNING",
)
source = application.topic(f"{name}-in", value_deserializer="str", key_deserializer="str")
counts = application.topic(f"{name}-out", value_serializer="str", key_serializer="str")
with application.get_producer() as producer:
    for number in range(RECORDS):
        producer.produce(source.name, key=f"key-{number % 5}", value="x")
rows = application.dataframe(source).apply(count, stateful=True).apply(str).to_topic(counts)
application.run(count=RECORDS, timeout=60)
