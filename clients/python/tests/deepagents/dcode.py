"""deepagents-code in an environment of its own, with this package and a scripted model installed beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

PYTHON_CLIENT = Path(__file__).parents[2]
MODEL = """
import json, os, pathlib
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

class Scripted(BaseChatModel):
    model: str = ""
    profile: dict | None = {"tool_calling": True, "max_input_tokens": 100_000}

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        steps = json.loads(pathlib.Path(os.environ["SCRIPTED_STEPS"]).read_text())
        number = sum(isinstance(message, AIMessage) for message in messages)
        heard = "".join(f"[{message.text}]" for message in messages if isinstance(message, ToolMessage))
        message = AIMessage(f"heard {heard}")
        if number < len(steps):
            name, args = steps[number]
            message = AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{number}"}])
        return ChatResult(generations=[ChatGeneration(message=message)])
"""
CONFIG = """
[models.providers.scripted]
class_path = "sandgate_scripted:Scripted"
models = ["steps"]
"""
# It stays at home: nothing is looked for, told or installed.
QUIET = {
    "DEEPAGENTS_CODE_NO_UPDATE_CHECK": "1",
    "DEEPAGENTS_CODE_OFFLINE": "1",
    "DEEPAGENTS_CODE_RIPGREP_INSTALLER": "system",
    "LANGSMITH_TRACING": "false",
}


@dataclass
class Said:
    """What became of a run."""

    code: int
    output: str

    @property
    def words(self) -> str:
        """On one line: it is wrapped for a terminal."""
        return " ".join(self.output.split())


@dataclass
class Dcode:
    """An installed one."""

    home: Path
    program: Path

    def python(self, script: str) -> str:
        """What a script says in its environment."""
        command = [self.program.with_name("python"), "-c", script]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=self._env({})).stdout

    def start(self, script: str) -> subprocess.Popen[str]:
        """Runs a script in its environment, to be talked to."""
        command = [self.program.with_name("python"), "-c", script]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._env({}))

    def _env(self, more: Mapping[str, str]) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **QUIET, **more}

    def run(self, *arguments: str, steps: list[tuple[str, dict[str, Any]]], env: Mapping[str, str]) -> Said:
        """`dcode`, not interactive, with a model that takes these steps."""
        (self.home / "steps.json").write_text(json.dumps(steps))
        command = [self.program, "-n", "go", "-M", "scripted:steps", "-S", "all", "--no-mcp", *arguments]
        done = subprocess.run(
            command,
            check=False,
            env=self._env({"SCRIPTED_STEPS": str(self.home / "steps.json"), **env}),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return Said(done.returncode, done.stdout)


def install(directory: Path) -> Dcode:
    """An environment over the one of `scripts/need`, which stays as it is. It has our wheel and the model."""
    tools = os.environ.get("SANDGATE_TOOLS") or Path(sys.executable).parents[2]
    below = Path(tools) / "dcode"
    assert below.is_dir(), "no deepagents-code: make test, or scripts/need dcode"
    home, venv = directory / "home", directory / "venv"
    (home / ".deepagents").mkdir(parents=True)
    (home / ".deepagents" / "config.toml").write_text(CONFIG)
    subprocess.run([below / "bin" / "python", "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python3*/site-packages")
    (beneath,) = below.glob("lib/python3*/site-packages")
    (site / "dcode.pth").write_text(f"{beneath}\n")
    zipfile.ZipFile(_wheel(directory)).extractall(site)
    (site / "sandgate_scripted.py").write_text(MODEL)
    # As pip does. dcode's own processes write none.
    subprocess.run([venv / "bin" / "python", "-m", "compileall", "-q", site], check=True)
    program = venv / "bin" / "dcode"
    first, _, rest = (below / "bin" / "dcode").read_text().partition("\n")
    assert first.startswith("#!"), first
    program.write_text(f"#!{venv}/bin/python\n{rest}")
    program.chmod(0o755)
    return Dcode(home, program)


def _wheel(directory: Path) -> Path:
    """Built from a copy, so that nothing is built in the tree."""
    source = directory / "source"
    shutil.copytree(PYTHON_CLIENT, source, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    script = "import hatchling.build, sys; hatchling.build.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", script, directory], cwd=source, check=True, capture_output=True)
    return next(directory.glob("*.whl"))
