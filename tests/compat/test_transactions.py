"""Transactions are not supported, and clients are told so at once."""

import time

import pytest
from confluent_kafka import KafkaException, Producer

from dovetail.kafka.codec.apis import SUPPORTED

#: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers, TxnOffsetCommit.
TRANSACTION_APIS = {24, 25, 26, 27, 28}


def test_transactions_are_not_advertised() -> None:
    """K5: what is not there is not promised."""
    assert not TRANSACTION_APIS & set(SUPPORTED)


def test_a_transactional_producer_is_refused_at_once(bootstrap: str, node_only: None) -> None:
    """K5: by the protocol's own error, not by a timeout."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t-1", "log_level": 0})
    began = time.monotonic()
    with pytest.raises(KafkaException) as raised:
        producer.init_transactions(30)
    assert time.monotonic() - began < 15
    assert not raised.value.args[0].retriable()
