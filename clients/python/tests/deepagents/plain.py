"""deepagents' own `BaseSandbox` in a sandbox of ours, to compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

if TYPE_CHECKING:
    import sandgate


class Plain(BaseSandbox):
    """deepagents' own file methods, over a shell."""

    def __init__(self, sandbox: sandgate.Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def id(self) -> str:
        return self._sandbox.name

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        result = self._sandbox.run(command, timeout=timeout, merge_stderr=True)
        return ExecuteResponse(result.stdout, result.exit_code)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        for path, content in files:
            self._sandbox.files.write(path, content)
        return [FileUploadResponse(path) for path, _ in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [FileDownloadResponse(path, self._sandbox.files.read(path)) for path in paths]
