"""Maps decisions of a transaction coordinator to Kafka's codes."""

from dovetail.access import Kind, Operation
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.log.transactions.coordinator import TransactionCoordinator
from dovetail.log.transactions.registry import ID_CHARACTERS_MAX
from dovetail.log.transactions.types import TransactionError

_CODES: dict[TransactionError, ErrorCode] = {
    TransactionError.FENCED: ErrorCode.PRODUCER_FENCED,
    TransactionError.MAPPING: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    TransactionError.INVALID_STATE: ErrorCode.INVALID_TXN_STATE,
    TransactionError.NOT_PART: ErrorCode.INVALID_TXN_STATE,
    TransactionError.BUSY: ErrorCode.CONCURRENT_TRANSACTIONS,
    TransactionError.NOT_FOUND: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    TransactionError.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    TransactionError.NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    TransactionError.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
}


def transaction_code(error: TransactionError, *, knows_fenced: bool = True) -> ErrorCode:
    """The code; a client of before KIP-588 knows a fenced producer by its epoch alone."""
    code = _CODES[error]
    if code is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def coordinator_of(
    backend: Backend, call: Call, operation: Operation, transactional_id: str
) -> TransactionCoordinator | ErrorCode:
    """The coordinator of a transactional id, or why it is not asked."""
    if not call.access.allows(operation, Kind.TRANSACTIONAL_ID, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not 0 < len(transactional_id) <= ID_CHARACTERS_MAX:
        return ErrorCode.INVALID_REQUEST
    return backend.transactions.of(transactional_id) or ErrorCode.NOT_COORDINATOR
