//! The output as a file in the sandbox, all of it or up to a bound, for an agent to read, once it is larger than a model
//! wants to see.

use std::{fs::File, io::Write as _, sync::Arc};

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use sandgate_files::{Defaults, View};
use sandgate_output::{FollowFrom, Follower, Item};
use sandgate_proto::runtime::v1::FileView;
use tokio::task::spawn_blocking;

use crate::{
    exec::{Exec, Saved},
    spec::Save,
    task,
};

/// Follows the exec and saves its output, as its user, if it grows past the bound. `note` is called when that is done.
pub(crate) fn follow(
    exec: &Arc<Exec>,
    save: Save,
    user: String,
    defaults: Defaults,
    note: impl Fn(&Exec) + Send + 'static,
) {
    let exec = exec.clone();
    // Attached before the program can have written much, so that no byte is dropped before it is seen.
    let counting = exec.log.follow(FollowFrom::Start, true);
    task::spawn("save output", &exec.id.clone(), async move {
        let outcome = async {
            let mut counting = counting;
            while let Some(item) = counting.next().await {
                if matches!(item, Item::Gap { .. }) || counting.position().total() > save.after_bytes {
                    // Attached before the other one goes, which would hold a writer back for ever.
                    let whole = exec.log.follow(FollowFrom::Start, true);
                    drop(counting);
                    return write(&exec, whole, &save, user, defaults).await;
                }
                let upto = counting.position();
                exec.status.send_modify(|status| status.saved.upto = upto);
            }
            Ok(())
        };
        if let Err(error) = outcome.await {
            exec.status.send_modify(|status| status.saved.error = error);
        }
        exec.status.send_modify(|status| status.saved.done = true);
        // What was noted at the end of the output did not know of this yet.
        note(&exec);
    });
}

async fn write(
    exec: &Arc<Exec>,
    mut follower: Follower,
    save: &Save,
    user: String,
    defaults: Defaults,
) -> Result<(), String> {
    let (path, raw) = (save.path.clone(), save.path_raw.clone());
    let opened = spawn_blocking(move || open(&path, &raw, user, &defaults)).await;
    let mut file = opened.map_err(|error| error.to_string())??;
    exec.status.send_modify(|status| {
        // What was counted so far is not written yet.
        status.saved = Saved {
            path: save.path.clone(),
            path_raw: save.path_raw.clone(),
            ..Saved::default()
        };
    });
    let (mut gap, mut written) = (false, 0);
    while let Some(item) = follower.next().await {
        match item {
            Item::Data { mut bytes, .. } => {
                let over = split_over(&mut bytes, save.max_bytes, written);
                written += bytes.len() as u64;
                file = append(file, bytes).await?;
                exec.status.send_modify(|status| status.saved.bytes = written);
                if over {
                    // Nothing more is followed: what is not saved must not hold the program up.
                    return Err(format!("the file ends after {written} bytes, the most it was to hold"));
                }
            }
            Item::Gap { .. } => gap = true,
            Item::Mark(_) => {}
        }
        let upto = follower.position();
        exec.status.send_modify(|status| status.saved.upto = upto);
    }
    if gap {
        Err("some of the output was dropped before it could be saved".to_owned())
    } else {
        Ok(())
    }
}

/// Cuts off what the file has no room for. Gives whether there was any.
fn split_over(bytes: &mut Bytes, most: Option<u64>, written: u64) -> bool {
    let room = most.map_or(u64::MAX, |most| most - written);
    match usize::try_from(room) {
        Ok(room) if room < bytes.len() => {
            bytes.truncate(room);
            true
        }
        _ => false,
    }
}

async fn append(mut file: File, bytes: Bytes) -> Result<File, String> {
    let written = spawn_blocking(move || file.write_all(&bytes).map(|()| file)).await;
    written
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())
}

fn open(path: &str, raw: &Bytes, user: String, defaults: &Defaults) -> Result<File, String> {
    let view = View::open(
        &FileView {
            user,
            ..FileView::default()
        },
        defaults,
    )
    .map_err(|error| error.message)?;
    let path = view.path(path, raw).map_err(|error| error.message)?;
    let _acting = view.act().map_err(|error| error.message)?;
    if let Some(parent) = path.as_path().parent() {
        view.make_directories(parent).map_err(|error| error.message)?;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let file = view
        .root()
        .open(path.as_path(), flags, Mode::from_raw_mode(0o644))
        .map_err(|error| error.to_string())?;
    let file = File::from(file);
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        _ => Err("the path is no regular file".to_owned()),
    }
}
