//! `sandgate ls`: the sandboxes there are.

use std::process::ExitCode;

use sandgate::v1::{self, ListRequest};

use super::{Context, Failure, output, sandboxes::ListView};

const PAGE: u32 = 500;

/// List sandboxes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate ls
  sandgate ls -l 'team=red,stage!=old'
  sandgate ls -o json")]
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
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let mut sandboxes: Vec<v1::Sandbox> = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListRequest {
            label_selector: args.selector.clone(),
            page_size: PAGE,
            page_token,
        };
        let page = client.raw().list(request).await?.into_inner();
        sandboxes.extend(page.sandboxes);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let sandboxes = sandboxes.into_iter().map(Into::into).collect();
    output::show(ctx.output, &ListView { sandboxes })?;
    Ok(ExitCode::SUCCESS)
}
