"""Payloads with schemas: Avro, Protobuf and JSON Schema by a schema registry.

A producer registers its schema once and writes the schema's number in front of each payload. A
consumer looks the number up, once, and reads what the producer wrote, even after the schema has
evolved. The registry decides which changes are allowed. It is a separate server: any with
Confluent's HTTP API (Confluent, Apicurio, Karapace). Messages without a schema are unaffected.

    encode = encoder(Registry("http://registry:8081"), "orders", avro=ORDER_SCHEMA)
    Producer("orders", encode=encode).publish({"sku": "A-7"}, session=session)

Confluent's own library (`pip install 'dovetailmq[registry]'`) does encodings, caches and the HTTP
API; this room fits it to the outbox, to teams and to Spark tables (`spark/payloads.py`).

    framing.py    the bytes in front of a payload: its schema, and which message of it     pure
    payloads.py   `encoder` and `decoder`: values to such bytes and back
    showing.py    such bytes as JSON text, for the console: a process of its own
"""

from dovetail.registry.payloads import Registry, decoder, encoder

__all__ = ["Registry", "decoder", "encoder"]
