"""Kafka's protocol: the codec, the handlers of a broker, and a client of our own."""
