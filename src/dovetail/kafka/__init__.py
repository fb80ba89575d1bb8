"""Kafka's protocol: as a broker answers it, and as our own client speaks it.

    codec/      bytes to typed messages and back; the tables of requests and error codes (pure)
    handlers/   what a broker answers, by asking the log
    client/     our one Kafka client, for the outbox's relay, Spark tables and teams

Applications use librdkafka (confluent-kafka) or any other client. Ours exists for writers that
choose their own sequence numbers and store them first, which no other client allows.

This package imports nothing, and neither do `codec` and `client`: the command line loads the table
of error codes without loading the messages.
"""
