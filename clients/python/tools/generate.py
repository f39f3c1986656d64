"""Makes the Python code that is committed and not written by hand.

Usage: generate.py PROTO_DIR OUT_DIR

- `sandgate/v1`: messages and stubs of the contract, by protoc, with types. The modules are called as protoc calls them
  (`sandgate.v1.exec_pb2`), so no import has to be rewritten.
- `sandgate/_gen/reasons.py`: an exception for each reason of the contract.
- `sandgate/_gen/sync`: the synchronous client, from the asynchronous one; `sandgate/_gen/deepagents` likewise.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import grpc_tools  # pyright: ignore[reportMissingTypeStubs]
from google.protobuf import descriptor_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent.parent
SOURCE = HERE / "src" / "sandgate"
BIN = Path(sys.executable).parent
PREFIX = "ERROR_REASON_"
# Python's own name would be hidden.
RENAMED = {"NOT_IMPLEMENTED": "NotImplementedYet"}
# What Python has a name of its own for.
BUILTINS = {
    "FILE_NOT_FOUND": "FileNotFoundError",
    "FILE_ALREADY_EXISTS": "FileExistsError",
    "FILE_PERMISSION_DENIED": "PermissionError",
    "FILE_IS_DIRECTORY": "IsADirectoryError",
    "FILE_NOT_DIRECTORY": "NotADirectoryError",
}
# From the asynchronous client to the synchronous one, in this order.
TO_SYNC = [
    (r"\bio_async\b", "io_sync"),
    (r"\bAsync(Client|Sandbox|Files|Exec|Stream|Transport)\b", r"\1"),
    (r"\bAsync(Commands|FileTools|Keeper|Kept|Transfers|Use)\b", r"\1"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"`async with`", "`with`"),
    (r"\bawait\s+", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bio\.StreamCall\[\w+, (\w+)\]", r"io.StreamCall[\1]"),
    (r"\ban (`with`)", r"a \1"),
    (r"all tasks and event loops of a process", "all threads of a process"),
    (r"in this task\b", "in this thread"),
    (r"A cancelled task, Ctrl-C,", "Ctrl-C,"),
    (r": a cancelled task, Ctrl-C\.", ": Ctrl-C."),
    (
        r"The asynchronous half\. The synchronous one in `_gen` is made from these files: change only here\.",
        "The synchronous half of the backend. Made from the asynchronous one, see `tools/generate.py`.",
    ),
    (
        r"The asynchronous client\. The synchronous one in `_gen` is made from these files: change only here\.",
        "The synchronous client. Made from the asynchronous one, see `tools/generate.py`.",
    ),
    (r"from \.\.v1\b", "from ...v1"),
    (r"from \.\. import", "from ... import"),
    (r"from \.\.(_\w+)", r"from ...\1"),
    (r"from \.\.\._async\b", "from ..._gen.sync"),
]


def main() -> None:
    """Writes all of it."""
    protos, out = Path(sys.argv[1]), Path(sys.argv[2])
    messages(protos, out)
    generated = out / "sandgate" / "_gen"
    generated.mkdir(parents=True)
    (generated / "__init__.py").write_text('"""Generated code, see `tools/generate.py`."""\n')
    (generated / "reasons.py").write_text(reasons(protos))
    for source, twin in ((SOURCE / "_async", "sync"), (SOURCE / "deepagents" / "_async", "deepagents")):
        (generated / twin).mkdir()
        for path in sorted(source.glob("*.py")):
            (generated / twin / path.name).write_text(to_sync(path))
    ruff = [BIN / "ruff", "--quiet", "--config", HERE / "pyproject.toml"]
    subprocess.run([*ruff[:1], "check", "--fix-only", *ruff[1:], "--select", "I", generated], check=True)
    subprocess.run([*ruff[:1], "format", *ruff[1:], generated], check=True)


def messages(protos: Path, out: Path) -> None:
    """Messages and stubs."""
    out.mkdir(parents=True, exist_ok=True)
    plugins = ["python", "grpc_python", "mypy", "mypy_grpc"]
    protoc(protos, *(f"--{plugin}_out={out}" for plugin in plugins))
    package = out / "sandgate" / "v1"
    for path in package.glob("*_pb2_grpc.py*"):
        if not path.name.startswith("sandbox_service"):
            path.unlink()
    (package / "__init__.py").write_text('"""The messages of the contract, generated from `proto/sandgate/v1`."""\n')


def protoc(protos: Path, *flags: str) -> None:
    """Runs protoc on the contract."""
    files = sorted(str(path.relative_to(protos)) for path in (protos / "sandgate" / "v1").glob("*.proto"))
    include = Path(grpc_tools.__file__).parent / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"-I{include}", *flags, *files]
    # The plugins are programs beside Python's own.
    path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run(command, check=True, env=os.environ | {"PATH": path}, stderr=subprocess.DEVNULL)


def reasons(protos: Path) -> str:
    """The module of the exceptions."""
    with tempfile.NamedTemporaryFile() as file:
        protoc(protos, f"--descriptor_set_out={file.name}", "--include_source_info")
        described = descriptor_pb2.FileDescriptorSet.FromString(Path(file.name).read_bytes())
    source = next(file for file in described.file if file.name.endswith("/errors.proto"))
    classes, names, table = list[str](), list[str](), list[str]()
    for reason, code, text in listed(source):
        name = RENAMED.get(reason) or "".join(word.capitalize() for word in reason.split("_"))
        bases = ["".join(word.capitalize() for word in code.split("_")) + "Error"]
        bases += [f"builtins.{BUILTINS[reason]}"] if reason in BUILTINS else []
        lines = textwrap.wrap(text, 110)
        body = lines[0] if len(lines) == 1 else "\n    ".join([*lines, ""])
        classes.append(f'class {name}({", ".join(bases)}):\n    """{body}"""\n\n    reason = "{reason}"\n')
        names.append(f'    "{name}",')
        table.append(f'    "{reason}": {name},')
    lines = [
        '"""An exception for each reason of the contract. Generated from `proto/sandgate/v1/errors.proto`."""\n',
        "from __future__ import annotations\n",
        "import builtins\n",
        f"from .._core.errors import {', '.join(sorted(bases_used(classes)))}, SandgateError\n",
        "__all__ = [",
        *sorted(names),
        "]\n\n",
        "\n\n".join(classes),
        "\nBY_REASON: dict[str, type[SandgateError]] = {",
        *table,
        "}",
    ]
    return "\n".join(lines) + "\n"


def bases_used(classes: list[str]) -> set[str]:
    """The classes of gRPC codes that are needed."""
    return {match for text in classes for match in re.findall(r"\((\w+Error)", text)}


def listed(source: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[str, str, str]]:
    """Each reason with its gRPC code, which its comment begins with, and the rest of the comment."""
    index, enum = next((i, enum) for i, enum in enumerate(source.enum_type) if enum.name == "ErrorReason")
    comments = {tuple(place.path): place.leading_comments for place in source.source_code_info.location}
    for number, value in enumerate(enum.value):
        if value.number == 0:
            continue
        comment = " ".join(comments[5, index, 2, number].split())
        match = re.fullmatch(r"([A-Z_]+)\. (.+)", comment)
        if match is None:
            raise SystemExit(f"the comment of {value.name} does not begin with a gRPC code")
        yield value.name.removeprefix(PREFIX), match[1], match[2]


def to_sync(path: Path) -> str:
    """The synchronous twin of a module."""
    text = path.read_text()
    for pattern, replacement in TO_SYNC:
        text = re.sub(pattern, replacement, text)
    left = re.search(r"\basync\b|\bawait\b|\bAsync[A-Z]\w*", text)
    if left:
        raise SystemExit(f"{path.name}: {left[0]!r} is left in the synchronous twin")
    return f"# Generated from {path.relative_to(SOURCE)} by tools/generate.py. Do not edit.\n{text}"


if __name__ == "__main__":
    main()
