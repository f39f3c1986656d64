//! `sandgate watch`: what changes, for as long as it is wanted, also across lost connections and restarts of the server.

use std::{io, process::ExitCode, time::Duration};

use sandgate::{
    Error,
    v1::{self, WatchRequest, WatchResponse, watch_response::Event},
};
use serde::Serialize;

use super::{
    Context, Failure,
    output::{self, Paint, Show, Text},
    sandboxes::{SandboxView, word},
};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
// A server sends something every 15 s: silence for three times as long is a dead connection.
const SILENCE: Duration = Duration::from_secs(45);

/// Print the sandboxes there are, then every change, until interrupted
///
/// Goes on by itself when the connection is lost or the server restarted. With `-o json` each line is one event, whose
/// field `event` is snapshot, sandbox, deleted or synced.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate watch
  sandgate watch -l team=red -o json")]
pub(crate) struct Args {
    /// Only those whose labels match: `a=1,b!=2,c in (x,y),d,!e`
    #[arg(
        long,
        short = 'l',
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    selector: String,
    /// Begin after this token, of an earlier watch with the same selector
    #[arg(long, value_name = "TOKEN", default_value = "", hide_default_value = true)]
    resume_token: String,
}

/// One event.
#[derive(Debug, Serialize)]
struct View {
    #[serde(flatten)]
    event: EventView,
    resume_token: String,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum EventView {
    Snapshot,
    Sandbox {
        sandbox: Box<SandboxView>,
    },
    Deleted {
        name: String,
        uid: String,
        cause: String,
        message: String,
    },
    Synced,
}

/// Where a watch is.
struct Watch<'a> {
    ctx: &'a Context,
    request: WatchRequest,
    /// Something came since the last connection.
    alive: bool,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let mut watch = Watch {
        ctx,
        request: WatchRequest {
            label_selector: args.selector,
            resume_token: args.resume_token,
        },
        alive: false,
    };
    // A server that was never there is a mistake; one that was comes back.
    let mut seen = false;
    let mut pause = FIRST_PAUSE;
    loop {
        let failure = watch.follow().await;
        if watch.alive {
            (seen, pause, watch.alive) = (true, FIRST_PAUSE, false);
        }
        let passing = matches!(&failure, Failure::Client(error) if error.is_unavailable());
        if !seen || !passing {
            return Err(failure);
        }
        if pause == FIRST_PAUSE {
            output::note(&format!("{}; trying to go on", failure.line()));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

// === impl Watch ===

impl Watch<'_> {
    /// Follows until something breaks, and says what.
    async fn follow(&mut self) -> Failure {
        match self.events().await {
            Ok(()) => lost("the stream ended"),
            Err(failure) => failure,
        }
    }

    async fn events(&mut self) -> Result<(), Failure> {
        let client = self.ctx.client().await?;
        let mut stream = client.raw().watch(self.request.clone()).await?.into_inner();
        loop {
            let next = tokio::time::timeout(SILENCE, stream.message()).await;
            let Some(message) = next.map_err(|_| lost("nothing was heard for 45 s"))?? else {
                return Ok(());
            };
            self.alive = true;
            if !message.resume_token.is_empty() {
                self.request.resume_token.clone_from(&message.resume_token);
            }
            if let Some(view) = View::new(message) {
                output::show_line(self.ctx.output, &view)?;
            }
        }
    }
}

fn lost(why: &str) -> Failure {
    Error::from(tonic::Status::unavailable(why)).into()
}

// === impl View ===

impl View {
    fn new(message: WatchResponse) -> Option<Self> {
        let event = match message.event? {
            Event::Snapshot(_) => EventView::Snapshot,
            Event::Sandbox(sandbox) => EventView::Sandbox {
                sandbox: Box::new(sandbox.into()),
            },
            Event::Deleted(deleted) => EventView::deleted(deleted),
            Event::Synced(_) => EventView::Synced,
            Event::Heartbeat(_) => return None,
        };
        Some(Self {
            event,
            resume_token: message.resume_token,
        })
    }
}

impl EventView {
    fn deleted(deleted: v1::SandboxDeleted) -> Self {
        Self::Deleted {
            cause: word(deleted.cause().as_str_name(), "END_CAUSE_"),
            name: deleted.name,
            uid: deleted.uid,
            message: deleted.message,
        }
    }
}

impl Show for View {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        match &self.event {
            EventView::Snapshot => Ok(()),
            EventView::Synced => to.painted(Paint::Dim, "-- up to date"),
            EventView::Sandbox { sandbox } => {
                let name = to.paint(Paint::Bold, &sandbox.name);
                let state = match sandbox.state_message.is_empty() {
                    true => sandbox.state.clone(),
                    false => format!("{}: {}", sandbox.state, sandbox.state_message),
                };
                let state = to.paint(Paint::Plain, &state);
                to.put(&format!("{name} {state}"))
            }
            EventView::Deleted {
                name, cause, message, ..
            } => {
                let why = if message.is_empty() { cause } else { message };
                let why = if why == "unspecified" { "no longer matches" } else { why };
                let line = format!("{} gone: {}", to.paint(Paint::Bold, name), to.paint(Paint::Plain, why));
                to.put(&line)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(event: Event) -> Option<View> {
        View::new(WatchResponse {
            event: Some(event),
            resume_token: "t1".into(),
        })
    }

    #[test]
    fn each_event_is_tagged_and_carries_its_token() {
        let deleted = view(Event::Deleted(v1::SandboxDeleted {
            name: "demo".into(),
            uid: "u".into(),
            cause: v1::EndCause::Idle.into(),
            message: String::new(),
        }));
        assert_eq!(
            serde_json::to_value(deleted.unwrap()).unwrap(),
            json!({"event": "deleted", "name": "demo", "uid": "u", "cause": "idle", "message": "", "resume_token": "t1"})
        );
        let synced = view(Event::Synced(v1::WatchSynced {})).unwrap();
        assert_eq!(
            serde_json::to_value(synced).unwrap(),
            json!({"event": "synced", "resume_token": "t1"})
        );
        let sandbox = view(Event::Sandbox(v1::Sandbox {
            name: "demo".into(),
            ..v1::Sandbox::default()
        }));
        let json = serde_json::to_value(sandbox.unwrap()).unwrap();
        assert_eq!(
            (&json["event"], &json["sandbox"]["name"]),
            (&json!("sandbox"), &json!("demo"))
        );
    }

    #[test]
    fn heartbeats_are_not_shown() {
        assert!(view(Event::Heartbeat(v1::Heartbeat {})).is_none());
        assert!(View::new(WatchResponse::default()).is_none());
    }
}
