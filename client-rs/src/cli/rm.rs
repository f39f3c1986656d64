//! `sandgate rm`: remove sandboxes, all that are named, whatever becomes of one of them.

use std::{io, process::ExitCode, time::Duration};

use futures_util::{StreamExt as _, stream};
use sandgate::{
    Client,
    v1::{DeleteRequest, DeleteResponse},
};
use serde::Serialize;

use super::{
    Context, Failure,
    output::{self, Paint, Show, Text},
    spans,
};

const AT_ONCE: usize = 16;

/// End every process of sandboxes and remove them with their disks
///
/// That one does not exist is said, and is no failure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate rm demo
  sandgate rm one two three --grace 5s")]
pub(crate) struct Args {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// How long processes may take to end by themselves. They are killed at once if it is left out
    #[arg(long, value_name = "SPAN", value_parser = spans::duration)]
    grace: Option<Duration>,
}

/// What became of all of them.
#[derive(Debug, Serialize)]
struct View {
    removed: Vec<Removed>,
}

/// What became of one.
#[derive(Debug, Serialize)]
struct Removed {
    name: String,
    existed: bool,
    uid: Option<String>,
    incarnation: Option<String>,
    execs_ended: u32,
    disk_bytes: Option<u64>,
    volumes: Vec<String>,
    error: Option<Told>,
}

/// Why one was not removed.
#[derive(Debug, Serialize)]
struct Told {
    message: String,
    reason: Option<String>,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let grace = args.grace.map(spans::wire);
    let outcomes: Vec<(String, Result<DeleteResponse, Failure>)> = stream::iter(args.names)
        .map(|name| async {
            let outcome = delete(&client, &name, grace).await;
            (name, outcome)
        })
        .buffered(AT_ONCE)
        .collect()
        .await;
    let mut worst = 0;
    for (name, outcome) in &outcomes {
        if let Err(failure) = outcome {
            failure.note(name, ctx.output);
            worst = worst.max(failure.code());
        }
    }
    let removed = outcomes
        .into_iter()
        .map(|(name, outcome)| Removed::new(name, outcome))
        .collect();
    output::show(ctx.output, &View { removed })?;
    Ok(ExitCode::from(worst))
}

/// Removes one sandbox.
pub(crate) async fn delete(
    client: &Client,
    name: &str,
    grace: Option<prost_types::Duration>,
) -> Result<DeleteResponse, Failure> {
    let request = DeleteRequest {
        sandbox: name.to_owned(),
        grace,
        ..DeleteRequest::default()
    };
    Ok(client.raw().delete(request).await?.into_inner())
}

// === impl Removed ===

impl Removed {
    fn new(name: String, outcome: Result<DeleteResponse, Failure>) -> Self {
        let (answer, error) = match outcome {
            Ok(answer) => (answer, None),
            Err(failure) => (
                DeleteResponse::default(),
                Some(Told {
                    message: failure.to_string(),
                    reason: failure.reason(),
                }),
            ),
        };
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            name,
            existed: answer.existed,
            uid: some(answer.uid),
            incarnation: some(answer.incarnation),
            execs_ended: answer.execs_ended,
            disk_bytes: answer.disk_bytes,
            volumes: answer.volumes,
            error,
        }
    }

    fn line(&self) -> String {
        let mut facts = Vec::new();
        match self.execs_ended {
            0 => {}
            1 => facts.push("1 command ended".to_owned()),
            ended => facts.push(format!("{ended} commands ended")),
        }
        facts.extend(self.disk_bytes.map(|bytes| format!("{} freed", output::bytes(bytes))));
        facts.extend(self.volumes.iter().map(|volume| format!("volume {volume} removed")));
        match facts.is_empty() {
            true => format!("{} removed", self.name),
            false => format!("{} removed: {}", self.name, facts.join(", ")),
        }
    }
}

// === impl View ===

impl Show for View {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        for removed in &self.removed {
            match removed {
                // Told on stderr.
                Removed { error: Some(_), .. } => {}
                Removed { existed: true, .. } => to.line(removed.line())?,
                _ => to.painted(Paint::Dim, &format!("{} does not exist", removed.name))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sandgate::v1::ErrorReason;
    use serde_json::json;

    use super::*;

    fn three() -> View {
        let gone = DeleteResponse {
            existed: true,
            uid: "u".into(),
            incarnation: "i".into(),
            execs_ended: 2,
            disk_bytes: Some(2048),
            volumes: vec!["v".into()],
        };
        let refusal = sandgate_errors::status(ErrorReason::Internal, "broken");
        View {
            removed: vec![
                Removed::new("a".into(), Ok(gone)),
                Removed::new("b".into(), Ok(DeleteResponse::default())),
                Removed::new("c".into(), Err(refusal.into())),
            ],
        }
    }

    #[test]
    fn the_json_has_one_for_each_name() {
        let removed = serde_json::to_value(three()).unwrap()["removed"].take();
        assert_eq!(
            removed[0],
            json!({"name": "a", "existed": true, "uid": "u", "incarnation": "i", "execs_ended": 2,
                   "disk_bytes": 2048, "volumes": ["v"], "error": null})
        );
        assert_eq!(
            removed[1],
            json!({"name": "b", "existed": false, "uid": null, "incarnation": null, "execs_ended": 0,
                   "disk_bytes": null, "volumes": [], "error": null})
        );
        assert_eq!(removed[2]["error"], json!({"message": "broken", "reason": "INTERNAL"}));
    }

    #[test]
    fn the_text_says_what_was_removed_and_what_was_not_there() {
        let mut out = Vec::new();
        three().text(&mut Text::plain(&mut out)).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "a removed: 2 commands ended, 2.0 KiB freed, volume v removed\nb does not exist\n"
        );
    }
}
