//! The runtime on a network: who may call, what arrives through a WebSocket, and what else is on the port.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "runtime_network/around.rs"]
mod around;
#[path = "runtime_network/life.rs"]
mod life;
#[path = "runtime_network/proxy.rs"]
mod proxy;
#[path = "runtime_network/python.rs"]
mod python;
#[path = "runtime_network/tokens.rs"]
mod tokens;
#[path = "runtime_network/websocket.rs"]
mod websocket;
