"""All errors. Each reason of the contract has a class, below that of its gRPC code; `docs/errors.md` says what to do.

>>> from sandgate import errors
>>> issubclass(errors.FileNotFound, FileNotFoundError)
True
"""

from ._core.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    ClosedError,
    CommandFailed,
    ConfigError,
    ConnectionLost,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NoServer,
    NotFoundError,
    OutOfRangeError,
    PatienceEnded,
    PermissionDeniedError,
    ProtocolError,
    ResourceExhaustedError,
    SandgateError,
    TransferFailed,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)
from ._gen import reasons
from ._gen.reasons import *  # noqa: F403

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "ClosedError",
    "CommandFailed",
    "ConfigError",
    "ConnectionLost",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "NoServer",
    "NotFoundError",
    "OutOfRangeError",
    "PatienceEnded",
    "PermissionDeniedError",
    "ProtocolError",
    "ResourceExhaustedError",
    "SandgateError",
    "TransferFailed",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
]
__all__ += reasons.__all__

# So that tracebacks name what can be imported.
for _name in __all__:
    globals()[_name].__module__ = __name__
