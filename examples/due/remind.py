"""With librdkafka: python -m examples.due.remind 'call Ada' 5s [127.0.0.1:9092]"""

import sys

from confluent_kafka import Producer

text, delay, *rest = sys.argv[1:]
producer = Producer({"bootstrap.servers": rest[0] if rest else "127.0.0.1:9092"})
producer.produce("reminders", text.encode(), headers={"dovetail-delay": delay})
sys.exit(producer.flush(30))
