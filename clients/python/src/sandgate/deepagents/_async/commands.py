"""Commands of an agent."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from ..._core import io_async as io
from ..._core import types
from ..._core.errors import SandgateError
from ..._core.values import new_id
from ..._gen.reasons import InvalidArgument
from ...deepagents import interrupt, output
from ...deepagents.live import Live, listener
from ...deepagents.options import MOST_OUTPUT
from ...deepagents.places import ARTEFACTS

if TYPE_CHECKING:
    from deepagents.backends.protocol import ExecuteOffloadResult, ExecuteResponse

    from ..._async.sandbox import AsyncSandbox
    from ..._core.values import Span
    from ...deepagents.options import Options
    from .keeper import AsyncKeeper, AsyncKept

# Well below what a message may have.
LONGEST = 512 << 10


class AsyncCommands:
    """Runs commands to their end."""

    def __init__(self, keeper: AsyncKeeper, options: Options) -> None:
        self._keeper = keeper
        self._options = options

    async def execute(self, command: str, timeout: int | None) -> ExecuteResponse:
        """Its output as far as it fits into an answer. All of it is in a file then, which the answer names."""
        exec_id = new_id()
        path = f"{ARTEFACTS[0]}/{exec_id}"
        most = self._options.max_output_bytes
        budget = types.OutputBudget(most // 2, most - most // 2)
        limit = self._timeout(timeout)
        save = types.SaveOutput(path, most, self._options.max_saved_bytes)
        result = await self._run(command, exec_id, limit, budget, save)
        return output.response(result, path, limit)

    async def offload(
        self, command: str, path: str, most: int, most_saved: int | None, timeout: int | None
    ) -> ExecuteOffloadResult:
        """The same; output of more than `most` bytes is in the file alone, and the answer is a preview of it."""
        most = min(most, MOST_OUTPUT - output.PREVIEW)
        budget = types.OutputBudget(max(most, output.PREVIEW), output.PREVIEW)
        limit = self._timeout(timeout)
        # A limit of 0 would be none.
        cap = self._options.max_saved_bytes if most_saved is None else max(most_saved, 1)
        result = await self._run(command, new_id(), limit, budget, types.SaveOutput(path, most, cap))
        return output.offloaded(result, path, most, limit)

    def _timeout(self, asked: int | None) -> Span | None:
        # 0 is how deepagents says that there is none.
        return self._options.timeout if asked is None else asked or None

    async def _run(
        self,
        command: str,
        exec_id: str,
        timeout: Span | None,
        budget: types.OutputBudget,
        save: types.SaveOutput,
    ) -> types.RunResult:
        if len(command) > LONGEST:
            raise ValueError(f"the command has {len(command)} characters; write a script of that length to a file")
        async with self._keeper.use() as kept:
            await kept.prepare()
            save = replace(save, path=kept.places.for_commands(save.path))
            live = listener(kept.sandbox.name, exec_id) if self._options.stream else None
            try:
                with interrupt.noticed(kept.sandbox, exec_id):
                    if live is not None:
                        await self._show(kept, command, exec_id, timeout, save, live)
                    # Found by its id if it was started to be shown: it runs once.
                    result = await kept.sandbox.run(
                        command,
                        id=exec_id,
                        timeout=timeout,
                        cwd=kept.places.root_dir,
                        merge_stderr=True,
                        budget=budget,
                        save_output=save,
                    )
            except InvalidArgument as error:
                # The tool says this to the agent, whose mistake it is, and goes on.
                raise ValueError(error.message) from error
            if live is not None:
                live.ended(result.exit_code)
            return result

    async def _show(
        self, kept: AsyncKept, command: str, exec_id: str, timeout: Span | None, save: types.SaveOutput, live: Live
    ) -> None:
        """Starts it and shows what it writes as it comes, up to as much as an answer has."""
        sandbox = kept.sandbox
        try:
            exec = await sandbox.exec(
                command,
                id=exec_id,
                timeout=timeout,
                cwd=kept.places.root_dir,
                merge_stderr=True,
                hold=False,
                save_output=save,
            )
            live.started(command)
            async with exec:
                async for event in exec:
                    match event:
                        case types.Output(_, _, data):
                            live.output(data)
                        case types.Exited() | types.StartFailed():
                            break
                        case _:
                            pass
                    if live.shown >= self._options.max_output_bytes:
                        break
        except SandgateError:
            raise
        except BaseException:
            await io.shielded(kill_quietly(sandbox, exec_id))
            raise


async def kill_quietly(sandbox: AsyncSandbox, exec_id: str) -> None:
    """Kills a command on the way out, where another error is told."""
    with contextlib.suppress(SandgateError):
        await sandbox.signal_exec(exec_id, "KILL")
