"""The other kind of a client, or of a sandbox: a backend has a synchronous and an asynchronous half."""

from __future__ import annotations

from .._async.client import AsyncClient
from .._async.sandbox import AsyncSandbox
from .._gen.sync.client import Client
from .._gen.sync.sandbox import Sandbox

# The parts of a client are its own, and this package's.
# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001


Either = Client | AsyncClient | Sandbox | AsyncSandbox


def clients(given: Client | AsyncClient) -> tuple[Client, AsyncClient]:
    """Both kinds for one server."""
    return (given, _aclient(given)) if isinstance(given, Client) else (_client(given), given)


def sandboxes(given: Sandbox | AsyncSandbox) -> tuple[Client, AsyncClient, Sandbox, AsyncSandbox]:
    """Both kinds of one sandbox, and of clients for its server."""
    client, aclient = _client(given), _aclient(given)
    if isinstance(given, Sandbox):
        return client, aclient, given, AsyncSandbox(aclient._transport, given._target, given.info)
    return client, aclient, Sandbox(client._transport, given._target, given.info), given


def _client(like: Either) -> Client:
    transport = like._transport
    return Client(transport.endpoint.address, token=transport.endpoint.token, patience=transport.patience)


def _aclient(like: Either) -> AsyncClient:
    transport = like._transport
    return AsyncClient(transport.endpoint.address, token=transport.endpoint.token, patience=transport.patience)
