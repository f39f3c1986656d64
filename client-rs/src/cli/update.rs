//! `sandgate update`: change when a sandbox ends, how long it may idle, and its labels.

use std::{process::ExitCode, str::FromStr as _, time::Duration};

use prost_types::{FieldMask, Timestamp};
use sandgate::{
    Client,
    v1::{self, ErrorReason, GetRequest, SandboxSettings, UpdateRequest, sandbox_settings::End},
};

use super::{
    Context, Failure, create, output,
    pairs::{self, LabelChange},
    sandboxes::SandboxView,
    spans::{self, Limit},
};

// Others may change labels at the same moment; each round one of us wins.
const LABEL_ROUNDS: u32 = 10;

/// Change when a sandbox ends, how long it may idle, or its labels
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate update demo --ttl 2h
  sandgate update demo --idle none --label stage=done --label temporary-")]
#[command(group(clap::ArgGroup::new("change").args(["ttl", "deadline", "idle", "labels"]).required(true).multiple(true)))]
pub(crate) struct Args {
    /// Its name
    name: String,
    /// How long it lives from now on, or none: no deadline
    #[arg(long, value_name = "SPAN", value_parser = spans::limit, conflicts_with = "deadline")]
    ttl: Option<Limit>,
    /// When it ends, such as 2030-01-31T12:00:00Z, or none
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline: Option<Deadline>,
    /// How long it may idle before it is removed, or none
    #[arg(long, value_name = "SPAN", value_parser = spans::limit)]
    idle: Option<Limit>,
    /// A label to set, or `KEY-` to remove it. Others stay as they are. Can be repeated
    #[arg(long = "label", short = 'L', value_name = "KEY=VALUE|KEY-", value_parser = pairs::label_change)]
    labels: Vec<LabelChange>,
    /// Change it only if this is its etag
    #[arg(long, default_value = "", hide_default_value = true)]
    etag: String,
}

/// A point in time, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deadline {
    At(Timestamp),
    None,
}

fn deadline(text: &str) -> Result<Deadline, String> {
    match text {
        "none" => Ok(Deadline::None),
        text => Timestamp::from_str(text)
            .map(Deadline::At)
            .map_err(|_| "expected a time such as 2030-01-31T12:00:00Z, or none".into()),
    }
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let sandbox = update(&client, &args).await?;
    output::show(ctx.output, &SandboxView::from(sandbox))?;
    Ok(ExitCode::SUCCESS)
}

async fn update(client: &Client, args: &Args) -> Result<v1::Sandbox, Failure> {
    let mut rounds = 0;
    loop {
        let request = match args.labels.is_empty() {
            true => args.request(None),
            false => args.request(Some(current(client, &args.name).await?)),
        };
        let refused = match client.raw().update(request).await {
            Ok(answer) => {
                return answer
                    .into_inner()
                    .sandbox
                    .ok_or_else(|| Failure::incomplete("sandbox"));
            }
            Err(status) => sandgate::Error::from(status),
        };
        rounds += 1;
        let again = refused.reason() == Some(ErrorReason::EtagMismatch)
            && args.etag.is_empty()
            && !args.labels.is_empty()
            && rounds < LABEL_ROUNDS;
        if !again {
            return Err(refused.into());
        }
        tokio::time::sleep(Duration::from_millis(10) * rounds).await;
    }
}

async fn current(client: &Client, name: &str) -> Result<v1::Sandbox, Failure> {
    let request = GetRequest {
        sandbox: name.to_owned(),
    };
    let answer = client.raw().get(request).await?.into_inner();
    answer.sandbox.ok_or_else(|| Failure::incomplete("sandbox"))
}

// === impl Args ===

impl Args {
    /// What to ask for. The labels are all replaced, so they are those of `now` with the changes, under its etag.
    fn request(&self, now: Option<v1::Sandbox>) -> UpdateRequest {
        let mut settings = SandboxSettings::default();
        let mut paths: Vec<String> = Vec::new();
        let end = match (self.ttl, self.deadline) {
            (Some(Limit::Span(span)), _) => Some(("ttl", Some(End::Ttl(spans::wire(span))))),
            (_, Some(Deadline::At(at))) => Some(("deadline", Some(End::Deadline(at)))),
            (Some(Limit::None), _) | (_, Some(Deadline::None)) => Some(("deadline", None)),
            (None, None) => None,
        };
        if let Some((path, end)) = end {
            paths.push(path.into());
            settings.end = end;
        }
        if let Some(limit) = self.idle {
            paths.push("idle_limit".into());
            settings.idle_limit = Some(create::idle_limit(limit));
        }
        let mut etag = self.etag.clone();
        if let Some(now) = now {
            paths.push("labels".into());
            settings.labels = pairs::change(now.labels, &self.labels);
            if etag.is_empty() {
                etag = now.etag;
            }
        }
        UpdateRequest {
            sandbox: self.name.clone(),
            settings: Some(settings),
            update_mask: Some(FieldMask { paths }),
            etag,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Result<Args, clap::Error> {
        Line::try_parse_from(line.split(' ')).map(|line| line.args)
    }

    fn request(line: &str, now: Option<v1::Sandbox>) -> (UpdateRequest, SandboxSettings, Vec<String>) {
        let request = args(line).unwrap().request(now);
        let (settings, mask) = (request.settings.clone().unwrap(), request.update_mask.clone().unwrap());
        (request, settings, mask.paths)
    }

    #[test]
    fn only_what_is_named_is_changed() {
        let (request, settings, mask) = request("update demo --ttl 2h --etag e", None);
        assert_eq!((request.sandbox.as_str(), request.etag.as_str()), ("demo", "e"));
        assert_eq!(mask, ["ttl"]);
        assert_eq!(settings.end, Some(End::Ttl(spans::wire(Duration::from_secs(7_200)))));
        assert_eq!(settings.idle_limit, None);
    }

    #[test]
    fn none_takes_limits_away() {
        for line in ["update demo --ttl none", "update demo --deadline none"] {
            let (_, settings, mask) = request(line, None);
            assert_eq!((mask, settings.end), (vec!["deadline".to_owned()], None), "{line}");
        }
        let (_, settings, mask) = request("update demo --idle none", None);
        assert_eq!(mask, ["idle_limit"]);
        assert_eq!(settings.idle_limit, Some(spans::wire(Duration::ZERO)));
    }

    #[test]
    fn labels_are_merged_under_the_etag_that_was_read() {
        let now = v1::Sandbox {
            labels: [("keep", "1"), ("gone", "2")]
                .map(|(key, value)| (key.into(), value.into()))
                .into(),
            etag: "seen".into(),
            ..v1::Sandbox::default()
        };
        let line = "update demo --label new=3 --label gone- --deadline 2030-01-31T12:00:00Z";
        let (sent, settings, mask) = request(line, Some(now.clone()));
        assert_eq!(mask, ["deadline", "labels"]);
        assert_eq!(sent.etag, "seen");
        assert_eq!(
            settings.labels,
            [("keep", "1"), ("new", "3")]
                .map(|(key, value)| (key.into(), value.into()))
                .into()
        );
        let (sent, _, _) = request("update demo --label a=b --etag mine", Some(now));
        assert_eq!(sent.etag, "mine");
    }

    #[test]
    fn something_must_change_and_only_once() {
        for line in [
            "update demo",
            "update demo --etag e",
            "update demo --ttl 1h --deadline none",
            "update demo --deadline soon",
        ] {
            assert!(args(line).is_err(), "{line}");
        }
    }
}
