"""The one Kafka client of our own, over plain sockets.

    brokers.py       where the brokers are and how to log in, for every kind of client
    java_security.py TLS and login by the names that Java's clients have for them
    java_keystore.py what Java keeps certificates in, JKS and PKCS12, as PEM
    connection.py    one connection: TLS, login, requests out, answers in order
    greeting.py      whether a Kafka node is at an address, and lets us in
    client.py        leaders, offsets, positions of groups, producer ids; tries again what can pass
    producer.py      record batches to many partitions, pipelined and each stored once
    partitioner.py   the partition of a key, as librdkafka and the Java client choose it
    librdkafka.py    what errors of librdkafka mean among ours

It is for writers and readers that decide themselves: the relay of the outbox sends batches under
sequence numbers that it wrote down before, a Spark task reads a range of offsets that its driver
planned. So there are no groups, no threads and no queues. Spark's tables fetch with it
(`spark.fetching`), because they make columns of what comes.
"""
