"""Payloads with schemas: Avro, Protobuf and JSON Schema by a schema registry.

A producer registers its schema once and writes the registry's number of it in front of each
payload; a consumer looks the number up, once, and reads what the producer wrote, also after the
schema has evolved. The registry decides which changes are allowed. It is a server of its own: any
with Confluent's HTTP API (Confluent, Apicurio, Karapace). Nothing here is in the way of a message
that has no schema.

    encode = encoder(Registry("http://registry:8081"), "orders", avro=ORDER_SCHEMA)
    Producer("orders", encode=encode).publish({"sku": "A-7"}, session=session)

Encodings, caches and the HTTP API are Confluent's own library (`pip install
'dovetailmq[registry]'`); here is what fits it to the outbox, to teams and to Spark's tables
(`spark/payloads.py`).

    framing.py    the bytes in front of a payload: which schema, which message of it       pure
    payloads.py   `encoder` and `decoder`: values to such bytes and back
"""

from dovetail.registry.payloads import Registry, decoder, encoder

__all__ = ["Registry", "decoder", "encoder"]
