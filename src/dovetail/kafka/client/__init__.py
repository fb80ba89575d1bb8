"""A Kafka client of our own, over plain sockets."""
