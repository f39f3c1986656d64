# What we use of deepagents-code. It can't be where our code is checked: it pins an older deepagents.
from abc import ABC, abstractmethod
from typing import Any, Literal

from deepagents.backends.protocol import SandboxBackendProtocol

class SandboxInstallHint:
    def __init__(self, kind: Literal["extra", "package"], name: str) -> None: ...

class SandboxProviderMetadata:
    name: str
    working_dir: str
    supports_sandbox_id: bool
    supports_snapshot_name: bool
    def __init__(
        self,
        name: str,
        working_dir: str,
        install: SandboxInstallHint | None = None,
        supports_sandbox_id: bool = True,
        supports_snapshot_name: bool = False,
        backend_module: str | None = None,
    ) -> None: ...

class SandboxError(Exception): ...
class SandboxNotFoundError(SandboxError): ...

class SandboxProvider(ABC):
    @property
    def metadata(self) -> SandboxProviderMetadata | None: ...
    @abstractmethod
    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> SandboxBackendProtocol: ...
    @abstractmethod
    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None: ...
