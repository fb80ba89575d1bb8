"""Messages that are due later, from four Kafka clients; see the README of the examples."""
