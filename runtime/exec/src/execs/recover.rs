//! Taking over what an earlier runtime left: its ids, its records, its output. Its processes are gone.

use std::{collections::HashSet, fs, io, os::unix::fs::OpenOptionsExt as _, sync::Arc, time::SystemTime};

use sandgate_output::{LogOptions, Offsets, OnFull, Store};
use sandgate_proto::runtime::v1::{ExecExit, ExecInfo, ExecLost, ExecState, exec_exit};
use sandgate_sys::Counters;
use tokio::sync::{Notify, Semaphore, watch};

use super::{HEAD_BYTES, Inner, STARTS_AT_ONCE, Table};
use crate::{
    children::Children,
    exec::{Exec, Phase, Saved, Status, offsets},
    home::Homes,
    id::digest,
    journal::{Entry, Journal},
    launch::Launcher,
    ready::Bench,
    settings::Settings,
    spec::Fingerprint,
    tree::Roots,
};

pub(super) fn open(settings: Settings) -> io::Result<Inner> {
    let dir = settings.state_dir.clone();
    let (journal_path, counters_path) = (dir.join("execs.journal"), dir.join("execs.counters"));
    let left = Counters::left_behind(&counters_path)?;
    let mut entries = Journal::read(&journal_path)?;
    for entry in &mut entries {
        mark_lost(entry, &left);
    }
    // Written before the counters are made anew, which these entries now hold.
    let journal = Journal::rewrite(&journal_path, &entries)?;
    let counters = Arc::new(Counters::create(&counters_path, settings.max_alive)?);
    let store = Store::open(dir.join("output"), settings.output)?;
    let mut table = Table {
        free_slots: (0..settings.max_alive).rev().collect(),
        ..Table::default()
    };
    let recorded: HashSet<String> = entries
        .iter()
        .filter(|e| e.info.is_some())
        .map(|e| e.id.clone())
        .collect();
    for entry in entries {
        table.count += 1;
        match recovered(&entry, table.count, &store, &settings) {
            Some(exec) => {
                table.order.push_back(entry.id.clone());
                table.execs.insert(entry.id, Arc::new(exec));
            }
            None => {
                table.spent.insert(digest(&entry.id));
            }
        }
    }
    for id in store.ids()?.into_iter().filter(|id| !recorded.contains(id)) {
        // Its record was dropped, and the runtime died before its output was.
        let _ = fs::remove_dir_all(dir.join("output").join(id));
    }
    let roots = settings.cgroups.clone().map(Roots::take_over).transpose()?;
    Ok(Inner {
        launcher: Launcher {
            settings,
            roots,
            children: Children::default(),
            homes: Homes::default(),
            bench: Bench::default(),
        },
        store,
        journal,
        counters,
        key: key(&dir.join("fingerprint.key"))?,
        table: table.into(),
        starts: Semaphore::new(STARTS_AT_ONCE),
        alive: watch::Sender::new(0),
        stirred: Notify::new(),
    })
}

/// An exec that was alive when the runtime died is lost. What it had written was counted.
fn mark_lost(entry: &mut Entry, left: &[[u64; 2]]) {
    let Some(info) = entry.info.as_mut().filter(|info| !is_over(info)) else {
        return;
    };
    let counted = usize::try_from(entry.slot)
        .ok()
        .and_then(|slot| left.get(slot))
        .copied()
        .unwrap_or_default();
    let known = info.written.unwrap_or_default();
    let written = Offsets {
        stdout: counted[0].max(known.stdout),
        stderr: counted[1].max(known.stderr),
    };
    info.written = Some(offsets(written));
    info.output_ended = true;
    info.processes_alive = false;
    info.stdin_open = false;
    if info.state() == ExecState::Running {
        info.state = ExecState::Exited.into();
        info.exit = Some(ExecExit {
            status: Some(exec_exit::Status::Lost(ExecLost {})),
            offsets: Some(offsets(written)),
            exited_at: Some(SystemTime::now().into()),
            ..ExecExit::default()
        });
    }
}

fn is_over(info: &ExecInfo) -> bool {
    info.state() == ExecState::StartFailed || (info.state() == ExecState::Exited && info.output_ended)
}

/// The record of an exec of an earlier runtime; none if only its id is left.
fn recovered(entry: &Entry, number: u64, store: &Store, settings: &Settings) -> Option<Exec> {
    let info = entry.info.clone()?;
    let fingerprint: Fingerprint = entry.fingerprint.as_slice().try_into().ok()?;
    let written = info.written.unwrap_or_default();
    let written = Offsets {
        stdout: written.stdout,
        stderr: written.stderr,
    };
    let options = LogOptions {
        retain_bytes: settings.retain_bytes_max,
        on_full: OnFull::DropOldest,
        head_bytes: HEAD_BYTES,
    };
    let log = store.recover(&entry.id, options, Some(written));
    let log = log
        .inspect_err(|error| tracing::error!(exec = entry.id, %error, "output could not be recovered"))
        .ok()?;
    let phase = match (info.start_failure.clone(), info.exit) {
        (Some(failure), _) => Phase::StartFailed(failure),
        (None, exit) => Phase::Exited(Box::new(exit.unwrap_or_default())),
    };
    let exited_at = info.exit.as_ref().and_then(|exit| exit.exited_at);
    let time = |at: Option<prost_types::Timestamp>| at.and_then(|at| SystemTime::try_from(at).ok());
    let status = Status {
        phase,
        pid: info.pid,
        alive: false,
        saved: Saved {
            done: true,
            path: info.saved_path,
            path_raw: info.saved_path_raw,
            error: info.save_error,
            bytes: info.saved_bytes,
            ..Saved::default()
        },
        over_at: Some(time(exited_at).unwrap_or_else(SystemTime::now)),
    };
    Some(Exec {
        id: entry.id.clone(),
        number,
        incarnation: info.incarnation,
        fingerprint,
        command: info.command,
        started_at: time(info.started_at).unwrap_or(SystemTime::UNIX_EPOCH),
        log,
        status: watch::Sender::new(status),
        live: std::sync::OnceLock::new(),
        timed_out: false.into(),
        callers: 0.into(),
        calls: 0.into(),
    })
}

/// The key of the fingerprints in this directory, made at first use.
fn key(path: &std::path::Path) -> io::Result<Vec<u8>> {
    use io::Write as _;
    match fs::read(path) {
        Ok(key) if key.len() == 32 => return Ok(key),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut key = [0u8; 32];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    let aside = path.with_extension("new");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&aside)?;
    file.write_all(&key)?;
    fs::rename(aside, path)?;
    Ok(key.to_vec())
}
