from dovetail.spark._plain_records import (
    Buffer,
    Column,
    Decoded,
    HeaderColumn,
    Section,
)

def decode(
    sections: list[Section], offset_min: int, offset_end: int, with_headers: bool
) -> Decoded: ...
def encode(
    keys: Column | None,
    values: Column | None,
    headers: HeaderColumn | None,
    times: Buffer | None,
    now_ms: int,
    rows: Buffer,
    start: int,
    bytes_max: int,
) -> tuple[bytes, int, int, int]: ...
def assign(keys: Column | None, rows: int, partitions: int, first: int, run: int) -> bytes: ...
def group(assigned: Buffer, partitions: int) -> tuple[bytes, bytes]: ...
