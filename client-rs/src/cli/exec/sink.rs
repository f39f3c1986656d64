//! Where a command's events go: its streams to ours, or one line of JSON each.

use std::io;

use sandgate::{Event, OutputStream};
use tokio::io::{AsyncWrite, AsyncWriteExt as _, Stderr, Stdout};

use super::view::EventView;
use crate::cli::{
    Failure,
    output::{self, Format},
};

/// Writes without holding up anything else while a reader of ours is slow.
#[derive(Debug)]
pub(super) struct Sink {
    format: Format,
    stdout: Stdout,
    stderr: Stderr,
}

// === impl Sink ===

impl Sink {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            stdout: tokio::io::stdout(),
            stderr: tokio::io::stderr(),
        }
    }

    pub(super) async fn take(&mut self, exec_id: &str, event: &Event) -> Result<(), Failure> {
        match self.format {
            Format::Json => match EventView::new(exec_id, event) {
                Some(view) => write(&mut self.stdout, &view.line().map_err(Failure::Stdout)?).await,
                None => Ok(()),
            },
            Format::Text => match event {
                Event::Output {
                    stream: OutputStream::Stdout,
                    data,
                    ..
                } => write(&mut self.stdout, data).await,
                Event::Output {
                    stream: OutputStream::Stderr,
                    data,
                    ..
                } => {
                    // A closed stderr keeps no command from working.
                    _ = write(&mut self.stderr, data).await;
                    Ok(())
                }
                Event::Gap { stream, from, to } => {
                    output::note(&format!(
                        "{} bytes of {} are gone, from {from} to {to}",
                        to - from,
                        stream.name()
                    ));
                    Ok(())
                }
                _ => Ok(()),
            },
        }
    }
}

async fn write(to: &mut (impl AsyncWrite + Unpin), data: &[u8]) -> Result<(), Failure> {
    let written: io::Result<()> = async {
        to.write_all(data).await?;
        to.flush().await
    }
    .await;
    written.map_err(Failure::Stdout)
}
