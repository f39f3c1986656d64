//! This process's own terminal: its size, and its raw mode, which is undone on every way out.

use std::{
    io::{self, IsTerminal as _},
    panic,
    sync::{Mutex, Once, PoisonError},
};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// How the terminal was, while it is raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Every key goes to the command while this lives.
#[derive(Debug)]
pub(crate) struct Raw(());

/// Columns and rows of the terminal that stdout or stdin is; nothing if neither is one.
pub(crate) fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin())).ok()?;
    // A terminal that does not know its size says 0.
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// Whether a person types here.
pub(crate) fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

// === impl Raw ===

impl Raw {
    /// Takes over the terminal that stdin is; nothing if it is none.
    pub(crate) fn enter() -> Option<Self> {
        let before = tcgetattr(io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        // Where a panic aborts, nothing is dropped.
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let next = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                restore();
                next(info);
            }));
        });
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let guard = Self(());
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(guard)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}
