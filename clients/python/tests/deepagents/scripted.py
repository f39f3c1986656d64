"""A chat model that does what it was told, for agents that need none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType]
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepagents.backends.protocol import BackendProtocol
    from langchain_core.callbacks import CallbackManagerForLLMRun
    from langchain_core.messages import BaseMessage

Call = tuple[str, dict[str, Any]]


class Scripted(BaseChatModel):
    """Calls one tool after the other, then says that it is done. A run takes up where the last one stopped."""

    calls: list[Call]
    done: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Scripted:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = AIMessage("done")
        if self.done < len(self.calls) and self.calls[self.done][0] != "end":
            name, args = self.calls[self.done]
            message = AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{self.done}"}])
        self.done += 1
        return ChatResult(generations=[ChatGeneration(message=message)])


END: Call = ("end", {})


def agent(backend: BackendProtocol, *calls: Call) -> Any:
    """A deep agent that makes these calls. It remembers its threads."""
    model = Scripted(calls=list(calls))
    return cast("Any", create_deep_agent)(model=model, backend=backend, checkpointer=InMemorySaver())


def thread(name: str) -> dict[str, Any]:
    """The configuration of a run in that thread."""
    return {"configurable": {"thread_id": name}}


def said(state: dict[str, Any]) -> list[str]:
    """What the tools answered."""
    return [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)]
