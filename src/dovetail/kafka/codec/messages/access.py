"""Bit fields of allowed operations, as Kafka sends them."""

from typing import Final

#: What Kafka sends when the operations were not asked for.
AUTHORIZED_OPERATIONS_ABSENT: Final = -0x80000000
