//! From what a caller asks for to what can be started: checked once, here, so that a held value is valid.

use std::{collections::BTreeMap, ffi::CString, path::Path, time::Duration};

use prost::Message as _;
use sandgate_errors::Refusal;
use sandgate_proto::runtime::v1::{self as proto, exec_spec::Command};
use sandgate_sys::Limit;
use sha2::{Digest as _, Sha256};

use crate::settings::Settings;

/// A request that was checked.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) program: Program,
    pub(crate) env: Env,
    pub(crate) clear_env: bool,
    pub(crate) cwd: CString,
    pub(crate) user: String,
    pub(crate) umask: u32,
    pub(crate) limits: Vec<Limit>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) kill_grace: Duration,
    pub(crate) stdin: bool,
    pub(crate) merged: bool,
    pub(crate) pty: Option<Terminal>,
    pub(crate) hold: bool,
    pub(crate) retain_bytes: u64,
    pub(crate) save: Option<Save>,
}

#[derive(Debug)]
pub(crate) enum Program {
    Argv(Vec<CString>),
    Shell(Vec<u8>),
}

#[derive(Debug)]
pub(crate) struct Terminal {
    pub(crate) columns: u16,
    pub(crate) rows: u16,
    pub(crate) term: String,
}

/// Where the whole output goes, once there is much of it.
#[derive(Debug, Clone)]
pub(crate) struct Save {
    pub(crate) path: String,
    pub(crate) path_raw: bytes::Bytes,
    pub(crate) after_bytes: u64,
    /// How much the file holds at most; `None`: all.
    pub(crate) max_bytes: Option<u64>,
}

/// Environment variables: names and values.
pub type Env = Vec<(Vec<u8>, Vec<u8>)>;

/// What tells one request from another. Keyed, so that a guess at an environment can't be checked against it.
pub type Fingerprint = [u8; 32];

const MAX_SCRIPT: usize = 1 << 20;
const MAX_GRACE: Duration = Duration::from_secs(300);
const DEFAULT_GRACE: Duration = Duration::from_secs(5);
const DEFAULT_UMASK: u32 = 0o022;
const MAX_COMMAND_LINE: usize = 256;

// === impl Spec ===

impl Spec {
    pub(crate) fn check(spec: proto::ExecSpec, settings: &Settings) -> Result<Self, Refusal> {
        let pty = spec.pty.clone().map(terminal).transpose()?;
        let stderr = spec.stderr();
        let stdin = spec.stdin() == proto::StdinMode::Open;
        let on_full = spec.on_full();
        unknown_enum("spec.stderr", spec.stderr, stderr as i32)?;
        unknown_enum("spec.stdin", spec.stdin, spec.stdin() as i32)?;
        unknown_enum("spec.on_full", spec.on_full, on_full as i32)?;
        if pty.is_some() && stderr != proto::StderrMode::Unspecified {
            return Err(Refusal::invalid(
                "spec.stderr",
                "a PTY has only one stream: leave stderr unspecified",
            ));
        }
        let retain_bytes = match spec.retain_bytes {
            0 => settings.retain_bytes,
            n if n <= settings.retain_bytes_max => n,
            _ => {
                let most = settings.retain_bytes_max;
                return Err(Refusal::invalid(
                    "spec.retain_bytes",
                    format!("at most {most} bytes can be retained"),
                ));
            }
        };
        Ok(Self {
            program: program(spec.command)?,
            env: spec.env.iter().map(env_var).collect::<Result<_, _>>()?,
            clear_env: spec.clear_env,
            cwd: cwd(&spec.cwd, &spec.cwd_raw, &settings.cwd)?,
            user: spec.user,
            umask: umask(spec.umask)?,
            limits: spec.rlimits.iter().map(limit).collect::<Result<_, _>>()?,
            timeout: timeout(spec.timeout)?,
            kill_grace: grace(spec.kill_grace)?,
            stdin: stdin || pty.is_some(),
            merged: stderr == proto::StderrMode::Merged,
            pty,
            hold: on_full == proto::OnFull::Hold,
            retain_bytes,
            // What is to be saved must still be there when that is decided.
            save: spec
                .save_output
                .map(|wanted| save(wanted, retain_bytes / 2))
                .transpose()?,
        })
    }
}

/// The fingerprint of a request: everything that decides what is run. See the comment on `ExecSpec`.
#[must_use]
pub fn fingerprint(spec: &proto::ExecSpec, key: &[u8]) -> Fingerprint {
    let mut spec = spec.clone();
    let env: BTreeMap<String, proto::EnvVar> = spec.env.drain(..).map(|var| (var.name.clone(), var)).collect();
    spec.env = env.into_values().collect();
    if let Some(pty) = &mut spec.pty {
        pty.size = None;
    }
    Sha256::new()
        .chain_update(key)
        .chain_update(spec.encode_to_vec())
        .finalize()
        .into()
}

/// The command as one line for a person.
#[must_use]
pub fn command_line(spec: &proto::ExecSpec) -> String {
    let line = match &spec.command {
        Some(Command::Shell(script)) => script.clone(),
        Some(Command::Argv(argv)) if argv.args_raw.is_empty() => argv.args.join(" "),
        Some(Command::Argv(argv)) => argv
            .args_raw
            .iter()
            .map(|arg| String::from_utf8_lossy(arg))
            .collect::<Vec<_>>()
            .join(" "),
        None => String::new(),
    };
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = line.len().min(MAX_COMMAND_LINE);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line[..end].to_owned()
}

/// A span from the wire. `None` when it is absent.
///
/// # Errors
/// When it is negative or out of range.
pub fn span(field: &str, span: Option<prost_types::Duration>) -> Result<Option<Duration>, Refusal> {
    span.map(|span| Duration::try_from(span).map_err(|_| Refusal::invalid(field, "must not be negative")))
        .transpose()
}

fn unknown_enum(field: &str, sent: i32, known: i32) -> Result<(), Refusal> {
    // prost reads a number that it does not know as the first value; we refuse what we do not understand.
    if sent == known {
        Ok(())
    } else {
        Err(Refusal::invalid(field, format!("{sent} is not a value of this enum")))
    }
}

fn program(command: Option<Command>) -> Result<Program, Refusal> {
    match command {
        None => Err(Refusal::invalid("spec.command", "give argv or shell")),
        Some(Command::Shell(script)) => {
            let field = "spec.shell";
            if script.len() > MAX_SCRIPT {
                return Err(Refusal::invalid(
                    field,
                    "a script is at most 1 MiB: upload it and run the file",
                ));
            }
            if script.contains('\0') {
                return Err(Refusal::invalid(field, "must not hold a NUL byte"));
            }
            Ok(Program::Shell(script.into_bytes()))
        }
        Some(Command::Argv(argv)) => {
            let field = "spec.argv.args";
            if !argv.args.is_empty() && !argv.args_raw.is_empty() {
                return Err(Refusal::invalid(field, "give args or args_raw, not both"));
            }
            let raw = argv.args_raw.into_iter().map(Vec::from);
            let args = argv.args.into_iter().map(String::into_bytes).chain(raw);
            let args = args.map(|arg| c_string(field, arg)).collect::<Result<Vec<_>, _>>()?;
            if args.first().is_none_or(|program| program.is_empty()) {
                return Err(Refusal::invalid(field, "the first argument names the program"));
            }
            Ok(Program::Argv(args))
        }
    }
}

fn env_var(var: &proto::EnvVar) -> Result<(Vec<u8>, Vec<u8>), Refusal> {
    if var.name.is_empty() || var.name.contains(['=', '\0']) {
        return Err(Refusal::invalid(
            "spec.env.name",
            "a name is not empty and holds neither `=` nor NUL",
        ));
    }
    let value = if var.value_raw.is_empty() {
        var.value.as_bytes()
    } else {
        &var.value_raw
    };
    if value.contains(&0) {
        let name = &var.name;
        return Err(Refusal::invalid(
            "spec.env.value",
            format!("the value of {name} must not hold a NUL byte"),
        ));
    }
    Ok((var.name.clone().into_bytes(), value.to_vec()))
}

/// Checks an environment for every exec.
///
/// # Errors
/// As for the `env` of a spec.
pub fn check_env(vars: &[proto::EnvVar]) -> Result<Env, Refusal> {
    vars.iter().map(env_var).collect()
}

fn cwd(text: &str, raw: &[u8], default: &Path) -> Result<CString, Refusal> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = if raw.is_empty() { text.as_bytes() } else { raw };
    let path = if path.is_empty() {
        default.as_os_str().as_bytes()
    } else {
        path
    };
    if !path.starts_with(b"/") {
        return Err(Refusal::invalid("spec.cwd", "must be absolute"));
    }
    c_string("spec.cwd", path.to_vec())
}

fn c_string(field: &str, bytes: Vec<u8>) -> Result<CString, Refusal> {
    CString::new(bytes).map_err(|_| Refusal::invalid(field, "must not hold a NUL byte"))
}

fn umask(mask: Option<u32>) -> Result<u32, Refusal> {
    match mask.unwrap_or(DEFAULT_UMASK) {
        mask if mask <= 0o777 => Ok(mask),
        _ => Err(Refusal::invalid("spec.umask", "must be 0 to 0777")),
    }
}

fn limit(limit: &proto::Rlimit) -> Result<Limit, Refusal> {
    if limit.hard < limit.soft {
        return Err(Refusal::invalid(
            "spec.rlimits.hard",
            format!("{}: below the soft limit", limit.name),
        ));
    }
    Limit::named(&limit.name, limit.soft, limit.hard)
        .ok_or_else(|| Refusal::invalid("spec.rlimits.name", format!("there is no limit {:?}", limit.name)))
}

fn timeout(timeout: Option<prost_types::Duration>) -> Result<Option<Duration>, Refusal> {
    match span("spec.timeout", timeout)? {
        Some(Duration::ZERO) => Err(Refusal::invalid(
            "spec.timeout",
            "must be more than 0; leave it out for none",
        )),
        timeout => Ok(timeout),
    }
}

fn grace(grace: Option<prost_types::Duration>) -> Result<Duration, Refusal> {
    match span("spec.kill_grace", grace)?.unwrap_or(DEFAULT_GRACE) {
        grace if grace <= MAX_GRACE => Ok(grace),
        _ => Err(Refusal::invalid("spec.kill_grace", "must be at most 5 minutes")),
    }
}

fn terminal(pty: proto::Pty) -> Result<Terminal, Refusal> {
    let size = pty.size.unwrap_or(proto::PtySize { columns: 80, rows: 24 });
    let (columns, rows) = pty_size(&size)?;
    let term = if pty.term.is_empty() {
        "xterm-256color".to_owned()
    } else {
        pty.term
    };
    if term.contains('\0') {
        return Err(Refusal::invalid("spec.pty.term", "must not hold a NUL byte"));
    }
    Ok(Terminal { columns, rows, term })
}

/// Columns and rows of a terminal.
///
/// # Errors
/// When one of them is 0 or too large.
pub fn pty_size(size: &proto::PtySize) -> Result<(u16, u16), Refusal> {
    let bound = |n: u32| u16::try_from(n).ok().filter(|n| *n > 0);
    bound(size.columns)
        .zip(bound(size.rows))
        .ok_or_else(|| Refusal::invalid("size", "columns and rows are 1 to 65535"))
}

fn save(save: proto::SaveOutput, most: u64) -> Result<Save, Refusal> {
    let path: &[u8] = if save.path_raw.is_empty() {
        save.path.as_bytes()
    } else {
        &save.path_raw
    };
    if !path.starts_with(b"/") || path.contains(&0) {
        return Err(Refusal::invalid(
            "spec.save_output.path",
            "must be absolute and hold no NUL byte",
        ));
    }
    Ok(Save {
        path: save.path,
        path_raw: save.path_raw,
        after_bytes: save.after_bytes.min(most),
        max_bytes: (save.max_bytes > 0).then_some(save.max_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(env: &[(&str, &str)]) -> proto::ExecSpec {
        let var = |(name, value): &(&str, &str)| proto::EnvVar {
            name: (*name).into(),
            value: (*value).into(),
            value_raw: bytes::Bytes::new(),
        };
        proto::ExecSpec {
            command: Some(Command::Shell("true".into())),
            env: env.iter().map(var).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn the_order_of_env_and_the_size_of_a_pty_do_not_count() {
        let same = |a: &proto::ExecSpec, b: &proto::ExecSpec| fingerprint(a, b"key") == fingerprint(b, b"key");
        assert!(same(
            &spec(&[("A", "1"), ("B", "2")]),
            &spec(&[("B", "2"), ("A", "0"), ("A", "1")])
        ));
        assert!(!same(&spec(&[("A", "1")]), &spec(&[("A", "2")])));
        let pty = |columns| proto::ExecSpec {
            pty: Some(proto::Pty {
                size: Some(proto::PtySize { columns, rows: 1 }),
                term: String::new(),
            }),
            ..spec(&[])
        };
        assert!(same(&pty(1), &pty(2)));
        assert!(!same(&pty(1), &spec(&[])));
        assert_ne!(fingerprint(&spec(&[]), b"key"), fingerprint(&spec(&[]), b"other"));
    }

    #[test]
    fn a_command_line_is_one_bounded_line() {
        let mut long = spec(&[]);
        long.command = Some(Command::Shell(format!("a\nb{}", "é".repeat(300))));
        let line = command_line(&long);
        assert!(line.starts_with("a bé") && line.len() <= 256, "{line}");
    }
}
