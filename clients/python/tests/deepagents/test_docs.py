"""The examples of the page run."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import TYPE_CHECKING

from scripted import END, Scripted

from sandgate.deepagents import names

if TYPE_CHECKING:
    import pytest
    from place import Place

PAGE = Path(__file__).parents[4] / "docs" / "deepagents.md"
WRITE = ("write_file", {"file_path": "/workspace/answer.py", "content": "print(6 * 7)\n"})
RUN = ("execute", {"command": "python3 answer.py"})


def test_examples_run(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDGATE_ADDR", place.address)
    monkeypatch.setenv("SANDGATE_TOKEN", place.token or "")
    monkeypatch.chdir(tmp_path)
    model = Scripted(calls=[WRITE, RUN, END, WRITE, RUN, END, RUN, END])
    result = doctest.testfile(str(PAGE), module_relative=False, globs={"model": model})
    assert result.attempted > 20
    assert result.failed == 0
    assert model.done == len(model.calls)


def test_examples_of_modules_run() -> None:
    result = doctest.testmod(names)
    assert result.attempted > 0
    assert result.failed == 0
