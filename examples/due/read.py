"""Shows reminders as they become due, and how late each came; makes the topic if it is not there.

python -m examples.due.read [--bootstrap 127.0.0.1:9092] [--count 4]
"""

import argparse
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "reminders"


def make_topic(bootstrap: str) -> None:
    """A topic whose records may be due later."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, 1, config={"dovetail.due": "true"})
    try:
        admin.create_topics([topic])[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--count", type=int, default=0, help="stop after so many; 0: never")
    given = parser.parse_args()

    make_topic(given.bootstrap)
    consumer = Consumer({"bootstrap.servers": given.bootstrap, "group.id": "examples.due"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    print("reading", flush=True)
    seen = 0
    while not given.count or seen < given.count:
        record = consumer.poll(1.0)
        if record is None or record.error():
            continue
        # The time of such a record is when it was due.
        late_ms = time.time() * 1000 - record.timestamp()[1]
        print(f"{(record.value() or b'').decode()} ({late_ms:.0f} ms late)", flush=True)
        seen += 1
    consumer.close()


if __name__ == "__main__":
    main()
