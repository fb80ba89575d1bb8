"""Applies a topic's settings to a client's batch; pure.

Most topics set nothing that matters here, and their batches are stored as they came
(`TopicConfig.examines`). On other topics a batch is decompressed to check its records, or
compressed again.
"""

from dovetail.errors import BatchTooLarge, InvalidTimestamp, TooFewCopies
from dovetail.log.topic import TopicConfig
from dovetail.record_batch import CODEC_MASK, BatchHeader, decode_batch, recompressed

_NO_LIMIT = (1 << 63) - 1
_NO_TIMESTAMP = -1

#: The setting that has the level of a codec, by the codec's number.
_LEVELS = {1: "compression.gzip.level", 3: "compression.lz4.level", 4: "compression.zstd.level"}


def admit(
    batch: memoryview, header: BatchHeader, config: TopicConfig, *, all_acks: bool, now_ms: int
) -> tuple[memoryview, BatchHeader]:
    """The batch as it is to be stored.

    Raises `TooFewCopies`, `InvalidTimestamp`, `BatchTooLarge`, or `InvalidBatch` for a batch that
    had to be opened and is malformed.
    """
    demanded = int(config.setting("min.insync.replicas"))
    if all_acks and demanded > config.quorum.write:
        raise TooFewCopies(
            f"min.insync.replicas = {demanded}, but each record has {config.quorum.write} copies"
        )
    if not config.stamps_append_time:
        _check_times(batch, header, config, now_ms)

    codec = config.codec
    if codec is None or codec == header.attributes & CODEC_MASK:
        return batch, header
    level = int(config.setting(_LEVELS[codec])) if codec in _LEVELS else None
    batch, header = recompressed(batch, header, codec, None if level == -1 else level)
    if len(batch) > config.batch_bytes_max:
        raise BatchTooLarge(
            f"the batch has {len(batch)} bytes with compression.type = "
            f"{config.setting('compression.type')}; the topic accepts {config.batch_bytes_max} "
            "(max.message.bytes)"
        )
    return batch, header


def _check_times(batch: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    ahead_ms_max = int(config.setting("message.timestamp.after.max.ms"))
    if header.timestamp_max - now_ms > ahead_ms_max:
        raise InvalidTimestamp(
            f"timestamp {header.timestamp_max} is {header.timestamp_max - now_ms} ms ahead of "
            f"the broker's clock; the topic accepts {ahead_ms_max} ms"
        )
    old_ms_max = int(config.setting("message.timestamp.before.max.ms"))
    if old_ms_max == _NO_LIMIT:
        return
    for record in decode_batch(batch):
        if record.timestamp != _NO_TIMESTAMP and now_ms - record.timestamp > old_ms_max:
            raise InvalidTimestamp(
                f"timestamp {record.timestamp} is {now_ms - record.timestamp} ms old; the topic "
                f"accepts {old_ms_max} ms"
            )
