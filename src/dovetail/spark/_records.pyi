# The compiled functions have the signatures of the plain ones.
from dovetail.kafka.client.partitioner import (
    murmur2 as murmur2,
)
from dovetail.spark._plain_records import (
    assign as assign,
)
from dovetail.spark._plain_records import (
    decode as decode,
)
from dovetail.spark._plain_records import (
    encode as encode,
)
from dovetail.spark._plain_records import (
    encode_rows as encode_rows,
)
from dovetail.spark._plain_records import (
    group as group,
)
from dovetail.spark._plain_records import (
    objects as objects,
)
