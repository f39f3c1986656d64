"""LangChain's own suite for sandbox backends, unmodified.

It is older than the protocol of deepagents 0.7 in seven places: `write` overwrites now, and a pattern without a slash
matches names at any depth. deepagents' `BaseSandbox` fails the same seven, in the same run.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests
from plain import Plain
from support import new_name

from sandgate.deepagents import SandgateBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from place import Place

# The suite's own.
pytestmark = pytest.mark.filterwarnings("ignore:Class-scoped fixtures defined as instance methods")

OLDER = (
    "test_write_existing_file_fails",
    "test_glob",
    "test_glob_basic_pattern",
    "test_glob_with_directories",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_question_mark",
)


class TestSandgate(SandboxIntegrationTests):
    """All 86."""

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, place: Place) -> Iterator[SandgateBackend]:
        with place.client() as client, SandgateBackend(client=client, template=place.template, ttl=3600) as backend:
            yield backend


def expected_to_fail(name: str) -> Callable[..., Any]:
    """Their test with a mark, as a function of its own, or the mark would be on theirs."""
    test = getattr(SandboxIntegrationTests, name)

    @functools.wraps(test)
    def marked(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)

    return pytest.mark.xfail(strict=True, raises=AssertionError, reason="older than deepagents 0.7")(marked)


for older in OLDER:
    setattr(TestSandgate, older, expected_to_fail(older))


@pytest.fixture(scope="module")
def plain(place: Place) -> Iterator[Plain]:
    with place.client() as client, client.create(new_name(), template=place.template, ttl=3600) as sandbox:
        yield Plain(sandbox)


@pytest.mark.parametrize("name", OLDER)
def test_base_sandbox_fails_it_too(name: str, plain: Plain) -> None:
    with pytest.raises(AssertionError):
        getattr(SandboxIntegrationTests(), name)(plain, f"/tmp/plain/{name}")


def test_the_suite_is_whole() -> None:
    names = [name for name in dir(TestSandgate) if name.startswith("test_")]
    assert len(names) == 86
    marked = [name for name in names if getattr(getattr(TestSandgate, name), "pytestmark", ())]
    assert sorted(marked) == sorted(OLDER)
