"""The kafka room: Kafka's protocol, as a broker answers it and as a client of ours speaks it.

    codec/      bytes to typed messages and back; the tables of requests and of error codes (pure)
    handlers/   what a broker answers, by asking the log
    client/     the one Kafka client of our own, for the outbox's relay, Spark's tables and teams

Applications use librdkafka (confluent-kafka) or any other client. Ours exists for writers that
choose their own sequence numbers and write them down, which no other client allows.

Nothing is imported here, nor in `codec` and `client`: the command line takes the table of error
codes without loading the messages.
"""
