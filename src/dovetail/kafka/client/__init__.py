"""Our one Kafka client, over plain sockets.

    brokers.py       the addresses of brokers and the login, for every kind of client
    java_security.py TLS and login under the names that Java's clients use
    java_keystore.py reads Java's keystores, JKS and PKCS12, as PEM
    connection.py    one connection: TLS, login, requests out, answers in order
    greeting.py      whether a Kafka node listens at an address, and accepts the login
    client.py        leaders, offsets, positions of groups, producer ids; retries transient errors
    producer.py      record batches to many partitions, pipelined, each stored once
    partitioner.py   the partition of a key, as librdkafka and the Java client choose it
    librdkafka.py    maps librdkafka's errors to ours

It is for writers and readers whose work is planned elsewhere: the outbox's relay sends batches
under sequence numbers that it stored before, a Spark task reads a range of offsets that its driver
planned. So it has no groups, no threads and no queues. Spark tables fetch with it too
(`spark.fetching`), because they decode batches straight into columns.
"""
