r"""Sandboxes for agents: make one, run commands in it with live output, move files in and out.

>>> from sandgate import Client
>>> with Client() as client, client.create() as sandbox:
...     sandbox.run("echo hello").stdout
'hello\n'

`AsyncClient` has the same surface for asyncio. What can go wrong is in `sandgate.errors`; messages of the contract are
in `sandgate.v1`.
"""

from . import errors
from ._async.client import AsyncClient
from ._async.execs import AsyncExec
from ._async.files import AsyncFiles
from ._async.sandbox import AsyncSandbox
from ._async.stream import AsyncStream
from ._core.convert import op_error
from ._core.errors import CommandFailed, SandgateError
from ._core.requests import UNSET
from ._core.server import LocalServer
from ._core.types import (
    Capability,
    CapabilityLevel,
    Changed,
    ColdReason,
    Connection,
    ConnectionMode,
    Deleted,
    DeleteResult,
    EditResult,
    EndCause,
    Ended,
    EnforcementLevel,
    ExecEvent,
    ExecInfo,
    ExecState,
    Exit,
    Exited,
    FileEvent,
    FileEventKind,
    FileInfo,
    FileType,
    Gap,
    GlobResult,
    GrepFile,
    GrepLine,
    GrepResult,
    IncarnationEnd,
    IsolationMechanism,
    Offsets,
    Output,
    OutputBudget,
    OutputStream,
    Pty,
    ReadResult,
    RuleEnforcement,
    RunResult,
    SandboxInfo,
    SandboxState,
    SaveOutput,
    Snapshot,
    Started,
    StartFailed,
    StartFailure,
    StartFailureReason,
    StartKind,
    StartReport,
    StreamOutput,
    Synced,
    TransferResult,
    Usage,
    Version,
    Volume,
    WarmPool,
    WatchEvent,
    WriteMode,
)
from ._gen.sync.client import Client
from ._gen.sync.execs import Exec
from ._gen.sync.files import Files
from ._gen.sync.sandbox import Sandbox
from ._gen.sync.stream import Stream

__version__ = "0.1.0"

__all__ = [
    "UNSET",
    "AsyncClient",
    "AsyncExec",
    "AsyncFiles",
    "AsyncSandbox",
    "AsyncStream",
    "Capability",
    "CapabilityLevel",
    "Changed",
    "Client",
    "ColdReason",
    "CommandFailed",
    "Connection",
    "ConnectionMode",
    "DeleteResult",
    "Deleted",
    "EditResult",
    "EndCause",
    "Ended",
    "EnforcementLevel",
    "Exec",
    "ExecEvent",
    "ExecInfo",
    "ExecState",
    "Exit",
    "Exited",
    "FileEvent",
    "FileEventKind",
    "FileInfo",
    "FileType",
    "Files",
    "Gap",
    "GlobResult",
    "GrepFile",
    "GrepLine",
    "GrepResult",
    "IncarnationEnd",
    "IsolationMechanism",
    "LocalServer",
    "Offsets",
    "Output",
    "OutputBudget",
    "OutputStream",
    "Pty",
    "ReadResult",
    "RuleEnforcement",
    "RunResult",
    "Sandbox",
    "SandboxInfo",
    "SandboxState",
    "SandgateError",
    "SaveOutput",
    "Snapshot",
    "StartFailed",
    "StartFailure",
    "StartFailureReason",
    "StartKind",
    "StartReport",
    "Started",
    "Stream",
    "StreamOutput",
    "Synced",
    "TransferResult",
    "Usage",
    "Version",
    "Volume",
    "WarmPool",
    "WatchEvent",
    "WriteMode",
    "errors",
    "op_error",
]
