"""Sandboxes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class SandboxState(StrEnum):
    """Where a sandbox is in its life."""

    UNKNOWN = "unknown"
    CREATING = "creating"
    READY = "ready"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    FAILED = "failed"
    DELETING = "deleting"


class CapabilityLevel(StrEnum):
    """How far a sandbox can do something."""

    UNKNOWN = "unknown"
    FULL = "full"
    LIMITED = "limited"


class EnforcementLevel(StrEnum):
    """How far a rule is kept."""

    UNKNOWN = "unknown"
    FULL = "full"
    FILE_CALLS = "file_calls"
    NONE = "none"


class ConnectionMode(StrEnum):
    """A way to reach a sandbox."""

    UNKNOWN = "unknown"
    LOCAL = "local"
    TUNNEL = "tunnel"
    GATEWAY = "gateway"
    DIRECT = "direct"
    IN_CLUSTER = "in_cluster"


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume that is made with a sandbox on Kubernetes, survives `suspend`, and is removed with it."""

    name: str
    """The name by which the template mounts it."""
    bytes: int
    storage_class: str | None = None
    """The Kubernetes storage class; by default the cluster's."""


class StartKind(StrEnum):
    """Whether something that was ready beforehand was used."""

    UNKNOWN = "unknown"
    WARM = "warm"
    COLD = "cold"
    RESUMED = "resumed"


class ColdReason(StrEnum):
    """Why a start was cold."""

    UNKNOWN = "unknown"
    NO_POOL = "no_pool"
    POOL_EMPTY = "pool_empty"
    ENV = "env"
    VOLUME = "volume"


class EndCause(StrEnum):
    """Why an incarnation ended."""

    UNKNOWN = "unknown"
    SUSPENDED = "suspended"
    DELETED = "deleted"
    DEADLINE = "deadline"
    IDLE = "idle"
    OUT_OF_MEMORY = "out_of_memory"
    EVICTED = "evicted"
    CRASHED = "crashed"
    MACHINE_LOST = "machine_lost"


@dataclass(frozen=True, slots=True)
class Capability:
    """Something that a sandbox can do."""

    name: str
    level: CapabilityLevel
    note: str = ""


@dataclass(frozen=True, slots=True)
class IsolationMechanism:
    """A mechanism that keeps a sandbox apart from its surroundings."""

    mechanism: str
    in_force: bool
    why_not: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class RuleEnforcement:
    """How a rule of a sandbox's policy is kept."""

    rule: str
    level: EnforcementLevel
    why: str = ""


@dataclass(frozen=True, slots=True)
class Connection:
    """How the server reaches a sandbox."""

    mode: ConnectionMode
    why: str = ""


@dataclass(frozen=True, slots=True)
class WarmPool:
    """A pool of sandboxes that wait to be used."""

    name: str
    ready: int
    wanted: int


@dataclass(frozen=True, slots=True)
class StartReport:
    """How an incarnation was started. Spans are in seconds."""

    kind: StartKind
    cold_reason: ColdReason
    message: str
    total: float
    steps: tuple[tuple[str, float], ...]
    pool: WarmPool | None = None


@dataclass(frozen=True, slots=True)
class IncarnationEnd:
    """How an incarnation ended. Its processes ended with it."""

    incarnation: str
    cause: EndCause
    message: str
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox uses. A field is `None` where it can't be measured, a limit where there is none."""

    measured_at: datetime | None
    cpu_time: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    disk_bytes: int | None
    disk_limit_bytes: int | None
    processes: int | None
    processes_limit: int | None
    cpu_limit_millis: int | None


@dataclass(frozen=True, slots=True, repr=False)
class SandboxInfo:
    """A sandbox, as it was when it was asked for."""

    name: str
    uid: str
    incarnation: str
    """The start of what runs inside; each ends every process of the one before. Empty while nothing runs."""
    template: str
    state: SandboxState
    state_message: str
    created_at: datetime | None
    deadline: datetime | None
    """When it is removed, whatever it does then."""
    idle_limit: float | None
    """How many seconds it may idle before it is removed."""
    labels: Mapping[str, str]
    etag: str
    capabilities: tuple[Capability, ...]
    isolation: tuple[IsolationMechanism, ...]
    enforcement: tuple[RuleEnforcement, ...]
    connection: Connection | None
    start: StartReport | None
    last_end: IncarnationEnd | None
    usage: Usage | None
    """What it uses. Only `get` measures."""
    provider: str
    driver: str
    driver_version: str

    @property
    def ready(self) -> bool:
        """It takes calls."""
        return self.state is SandboxState.READY

    def summary(self) -> str:
        """What matters, in one line."""
        parts = [str(self.state)]
        if self.state_message:
            parts.append(self.state_message)
        if self.template:
            parts.append(f"template {self.template}")
        if self.labels:
            parts.append(", ".join(f"{key}={value}" for key, value in sorted(self.labels.items())))
        if self.deadline:
            parts.append(f"ends in {_rough((self.deadline - datetime.now(UTC)).total_seconds())}")
        return f"{self.name!r} " + "; ".join(parts)

    def __repr__(self) -> str:
        return f"<SandboxInfo {self.summary()}>"


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """What was removed."""

    existed: bool
    uid: str = ""
    incarnation: str = ""
    execs_ended: int = 0
    disk_bytes: int | None = None
    volumes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What follows up to `Synced` is all there is: forget those that are not in it."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A sandbox was made or changed."""

    sandbox: SandboxInfo


@dataclass(frozen=True, slots=True)
class Deleted:
    """A sandbox is gone, or its labels no longer match."""

    name: str
    uid: str
    cause: EndCause
    message: str


@dataclass(frozen=True, slots=True)
class Synced:
    """Everything up to now was told."""


WatchEvent = Snapshot | Changed | Deleted | Synced
"""What a watch of sandboxes tells."""


def _rough(seconds: float) -> str:
    if seconds < 0:
        return "no time"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
