"""A sandbox as the backend of a deep agent: its files, its shell, and its scratch space.

    from deepagents import create_deep_agent
    from sandgate.deepagents import SandgateBackend

    agent = create_deep_agent(model, backend=SandgateBackend.for_thread())

Needs the extra: `pip install 'sandgate[deepagents]'`.
"""

try:
    import deepagents as _  # noqa: F401
except ImportError as error:
    raise ImportError("sandgate.deepagents needs deepagents: pip install 'sandgate[deepagents]'") from error

from .backend import SandgateBackend
from .names import thread_name

__all__ = ["SandgateBackend", "thread_name"]
