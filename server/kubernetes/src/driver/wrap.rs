//! A command as it is given to a pod that knows nothing of execs: a few lines of shell around it.
//!
//! They claim the exec's id by making a directory, which only one can, so that no server starts it twice: also not one
//! that never heard of the first start. Then they say, in a line before all output, that it runs and as which process
//! group, by which it can be signalled. What a caller gives is passed as arguments, and is never part of a script.

use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::{self as proto, StartFailure, exec_spec::Command, start_failure::Reason},
    v1::ErrorReason,
};

use super::{Driver, capabilities};

/// `sh -c WRAP sh NONCE ID MERGED UMASK CWD COUNT NAME=VALUE… PROGRAM ARGUMENT…`
const WRAP: &str = r#"n=$1 i=$2 o=$3 m=$4 w=$5 k=$6
shift 6
d=${TMPDIR:-/tmp}/.sandgate
mkdir -p -m 1777 "$d" 2>/dev/null
if ! mkdir "$d/$i" 2>/dev/null && [ -d "$d/$i" ]; then echo "$n taken"; exit 0; fi
umask "$m"
if [ -n "$w" ] && ! cd "$w" 2>/dev/null; then echo "$n cwd"; exit 0; fi
g=${SANDGATE_GROUP:-$$}
unset SANDGATE_GROUP
while [ "$k" -gt 0 ]; do export "$1"; shift; k=$((k-1)); done
case $1 in
*/*) if [ ! -e "$1" ]; then echo "$n missing"; exit 0; fi
if [ ! -f "$1" ] || [ ! -x "$1" ]; then echo "$n barred"; exit 0; fi ;;
*) if ! command -v "$1" >/dev/null 2>&1; then echo "$n missing"; exit 0; fi ;;
esac
[ "$o" = 1 ] && exec 2>&1
echo "$g $n" 2>/dev/null >"$d/$i/group"
echo "$n started $g"
exec "$@""#;

/// Claims a name: `sh -c CLAIM sh NAME`. Ends with 0 if it is ours, with 17 if it was taken before.
pub(crate) const CLAIM: &str = r#"d=${TMPDIR:-/tmp}/.sandgate
mkdir -p -m 1777 "$d" 2>/dev/null
mkdir "$d/$1" 2>/dev/null && exit 0
[ -d "$d/$1" ] && exit 17
exit 0"#;
pub(crate) const TAKEN: i32 = 17;

/// Signals a process group: `sh -c KILL sh SIGNAL GROUP`. Without `--`, which dash and busybox do not take there.
pub(crate) const KILL: &str = r#"kill -"$1" -"$2""#;

/// The same for an exec that has not told its group yet: `sh -c KILL_NOTED sh SIGNAL ID`.
pub(crate) const KILL_NOTED: &str = r#"read -r g n <"${TMPDIR:-/tmp}/.sandgate/$2/group" && kill -"$1" -"$g""#;

/// Waits until an exec has noted that it starts: `sh -c NOTED sh NONCE ID`. Ends with 0 when it has, and gives up after two
/// seconds.
pub(crate) const NOTED: &str = r#"t=40
while [ "$t" -gt 0 ]; do
{ read -r g n <"${TMPDIR:-/tmp}/.sandgate/$2/group"; } 2>/dev/null && [ "$n" = "$1" ] && exit 0
sleep 0.05
t=$((t-1))
done
exit 1"#;

/// Arguments and environment together. One argument of 128 KiB is more than the kernel takes, a long command holds up the
/// python-runtime, and those of pods/exec travel in a URL.
const MOST: usize = 60_000;

/// What the first line said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum First {
    /// It runs, in this process group.
    Started(u32),
    /// The id was claimed before.
    Taken,
    Failed(Reason),
}

/// `sh -c SCRIPT sh ARGUMENT…`
pub(crate) fn script(script: &str, args: &[&str]) -> Vec<String> {
    ["sh", "-c", script, "sh"]
        .iter()
        .chain(args)
        .map(|arg| (*arg).to_owned())
        .collect()
}

/// The arguments that start an exec.
///
/// # Errors
/// For what can't be given to a program this way.
pub(crate) fn wrap(
    driver: Driver,
    id: &str,
    nonce: &str,
    spec: &proto::ExecSpec,
    env: &[proto::EnvVar],
) -> Result<Vec<String>, Refusal> {
    let program = program(spec.command.as_ref())?;
    let vars: Vec<_> = env.iter().chain(&spec.env).map(assignment).collect::<Result<_, _>>()?;
    if !spec.cwd_raw.is_empty() {
        return Err(not_utf8("spec.cwd_raw"));
    }
    if !spec.cwd.is_empty() && !spec.cwd.starts_with('/') {
        return Err(Refusal::invalid("spec.cwd", "must be absolute"));
    }
    let mask = match spec.umask.unwrap_or(0o022) {
        mask if mask <= 0o777 => format!("{mask:04o}"),
        _ => return Err(Refusal::invalid("spec.umask", "must be 0 to 0777")),
    };
    let merged = if spec.stderr() == proto::StderrMode::Merged {
        "1"
    } else {
        "0"
    };
    let fixed = [nonce, id, merged, &mask, &spec.cwd];
    let mut args = script(WRAP, &fixed);
    if spec.clear_env {
        // The environment of the wrapper is not the program's.
        args.extend(["0".to_owned(), "env".to_owned(), "-i".to_owned()]);
    } else {
        args.push(vars.len().to_string());
    }
    args.extend(vars);
    args.extend(program);
    let length: usize = args.iter().map(|arg| arg.len() + 1).sum();
    if length > MOST {
        let message = format!(
            "a command with its environment is at most {MOST} bytes with driver {}: upload it and run the file",
            driver.as_str()
        );
        return Err(Refusal::invalid("spec.command", message));
    }
    if args.iter().any(|arg| arg.contains('\0')) {
        return Err(Refusal::invalid("spec.command", "must not hold a NUL byte"));
    }
    Ok(args)
}

fn program(command: Option<&Command>) -> Result<Vec<String>, Refusal> {
    match command {
        None => Err(Refusal::invalid("spec.command", "give argv or shell")),
        Some(Command::Shell(text)) => Ok(["/bin/sh", "-c", text].map(str::to_owned).to_vec()),
        Some(Command::Argv(argv)) if !argv.args_raw.is_empty() => Err(not_utf8("spec.argv.args_raw")),
        Some(Command::Argv(argv)) if argv.args.first().is_none_or(String::is_empty) => Err(Refusal::invalid(
            "spec.argv.args",
            "the first argument names the program",
        )),
        Some(Command::Argv(argv)) => Ok(argv.args.clone()),
    }
}

fn assignment(var: &proto::EnvVar) -> Result<String, Refusal> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_name = !var.name.is_empty() && var.name.bytes().all(legal) && !var.name.as_bytes()[0].is_ascii_digit();
    if !is_name {
        let message = "what runs in this sandbox takes only names of letters, digits and _ that a shell can export";
        return Err(Refusal::invalid("spec.env.name", message));
    }
    if !var.value_raw.is_empty() {
        return Err(not_utf8("spec.env.value_raw"));
    }
    Ok(format!("{}={}", var.name, var.value))
}

fn not_utf8(field: &str) -> Refusal {
    Refusal::invalid(field, "what runs in this sandbox takes only UTF-8")
}

/// Refuses what a driver can't do of a spec.
///
/// # Errors
/// CAPABILITY_MISSING with the name.
pub(crate) fn check(driver: Driver, spec: &proto::ExecSpec) -> Result<(), Refusal> {
    let wanted = [
        (!spec.user.is_empty(), "exec.user"),
        (!spec.rlimits.is_empty(), "exec.rlimits"),
        (spec.pty.is_some(), "exec.pty"),
        (spec.stdin() == proto::StdinMode::Open, "exec.stdin"),
        (spec.on_full() == proto::OnFull::Hold, "exec.hold"),
    ];
    let missing = wanted
        .iter()
        .find(|(wanted, name)| *wanted && !capabilities::has(driver, name));
    missing.map_or(Ok(()), |(_, name)| Err(capabilities::missing(driver, name)))
}

/// Reads the first line.
pub(crate) fn first_line(line: &[u8], nonce: &str) -> Option<First> {
    let line = std::str::from_utf8(line).ok()?.trim();
    let mut words = line.strip_prefix(nonce)?.split_whitespace();
    match (words.next()?, words.next()) {
        ("started", Some(group)) => Some(First::Started(group.parse().ok()?)),
        ("taken", None) => Some(First::Taken),
        ("missing", None) => Some(First::Failed(Reason::NotFound)),
        ("barred", None) => Some(First::Failed(Reason::NotExecutable)),
        ("cwd", None) => Some(First::Failed(Reason::BadCwd)),
        _ => None,
    }
}

/// Why it could not be started, for a person.
pub(crate) fn start_failure(reason: Reason, command: &str) -> StartFailure {
    let why = match reason {
        Reason::NotFound => "no such program",
        Reason::NotExecutable => "it can't be executed",
        Reason::BadCwd => "the working directory can't be entered",
        _ => "it could not be started",
    };
    StartFailure {
        reason: reason.into(),
        message: format!("{command}: {why}"),
    }
}

/// The exec was started by another server, or by this one before it was restarted.
pub(crate) fn taken(id: &str) -> Refusal {
    let message = format!("exec {id} was started before, and its record is not kept here; it is not run again");
    Refusal::new(ErrorReason::ExecExpired, message)
}

#[cfg(test)]
mod tests {
    use std::process::{Command as Process, Output};

    use super::*;

    fn spec(command: Command) -> proto::ExecSpec {
        proto::ExecSpec {
            command: Some(command),
            ..Default::default()
        }
    }

    fn argv(args: &[&str]) -> Command {
        Command::Argv(proto::Argv {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            args_raw: Vec::new(),
        })
    }

    fn var(name: &str, value: &str) -> proto::EnvVar {
        proto::EnvVar {
            name: name.into(),
            value: value.into(),
            ..Default::default()
        }
    }

    struct Shells(tempfile::TempDir);

    impl Shells {
        fn run(&self, id: &str, spec: &proto::ExecSpec) -> Output {
            let args = wrap(Driver::Exec, id, "NONCE", spec, &[var("GIVEN", "a b")]).unwrap();
            let mut process = Process::new(&args[0]);
            process.args(&args[1..]).env("TMPDIR", self.0.path());
            process.output().unwrap()
        }
    }

    fn told(output: &Output) -> (Option<First>, String) {
        let at = output.stdout.iter().position(|byte| *byte == b'\n').unwrap();
        let rest = String::from_utf8_lossy(&output.stdout[at + 1..]).into_owned();
        (first_line(&output.stdout[..at], "NONCE"), rest)
    }

    #[test]
    fn arguments_arrive_as_they_are() {
        let shells = Shells(tempfile::tempdir().unwrap());
        let nasty = ["printf", "<%s>", "$HOME", "a'b\"c", "--", "", "; exit 9", "`id`", "ä\n"];
        let mut wanted = spec(argv(&nasty));
        wanted.cwd = "/".into();
        let output = shells.run("one", &wanted);
        let (first, rest) = told(&output);
        assert!(matches!(first, Some(First::Started(_))), "{output:?}");
        assert_eq!(rest, "<$HOME><a'b\"c><--><><; exit 9><`id`><ä\n>");
        let mut wanted = spec(Command::Shell("echo $GIVEN $OWN; pwd; umask; exit 7".into()));
        wanted.env = vec![var("OWN", "$x")];
        wanted.cwd = "/usr".into();
        wanted.umask = Some(0o077);
        let output = shells.run("two", &wanted);
        assert_eq!(told(&output).1, "a b $x\n/usr\n0077\n");
        assert_eq!(output.status.code(), Some(7));
        let mut wanted = spec(argv(&["env"]));
        wanted.env = vec![var("OWN", "1")];
        wanted.clear_env = true;
        assert_eq!(told(&shells.run("three", &wanted)).1, "GIVEN=a b\nOWN=1\n");
    }

    #[test]
    fn an_id_is_run_once() {
        let shells = Shells(tempfile::tempdir().unwrap());
        let wanted = spec(argv(&["echo", "ran"]));
        assert_eq!(told(&shells.run("same", &wanted)).1, "ran\n");
        assert_eq!(told(&shells.run("same", &wanted)), (Some(First::Taken), String::new()));
        let claim = |name| {
            let args = script(CLAIM, &[name]);
            let mut process = Process::new(&args[0]);
            process.args(&args[1..]).env("TMPDIR", shells.0.path());
            process.status().unwrap().code()
        };
        assert_eq!((claim("batch"), claim("batch")), (Some(0), Some(TAKEN)));
    }

    #[test]
    fn a_start_is_noted_for_whoever_made_it() {
        let shells = Shells(tempfile::tempdir().unwrap());
        shells.run("one", &spec(argv(&["true"])));
        let noted = |nonce| {
            let args = script(NOTED, &[nonce, "one"]);
            let mut process = Process::new(&args[0]);
            process.args(&args[1..]).env("TMPDIR", shells.0.path());
            process.status().unwrap().code()
        };
        assert_eq!((noted("NONCE"), noted("ANOTHER")), (Some(0), Some(1)));
    }

    #[test]
    fn what_can_not_be_started_is_told() {
        let shells = Shells(tempfile::tempdir().unwrap());
        let failed = |id, wanted: &proto::ExecSpec| told(&shells.run(id, wanted)).0.unwrap();
        assert_eq!(
            failed("a", &spec(argv(&["no-such-program"]))),
            First::Failed(Reason::NotFound)
        );
        assert_eq!(failed("b", &spec(argv(&["/no/such"]))), First::Failed(Reason::NotFound));
        assert_eq!(
            failed("c", &spec(argv(&["/usr"]))),
            First::Failed(Reason::NotExecutable)
        );
        let mut wanted = spec(argv(&["true"]));
        wanted.cwd = "/no/such".into();
        assert_eq!(failed("d", &wanted), First::Failed(Reason::BadCwd));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused = |wanted: &proto::ExecSpec| wrap(Driver::Exec, "x", "n", wanted, &[]).unwrap_err();
        let long = refused(&spec(Command::Shell("x".repeat(MOST))));
        assert!(long.message.contains("upload it"), "{long}");
        let mut wanted = spec(argv(&["true"]));
        wanted.env = vec![var("A-B", "1")];
        assert_eq!(refused(&wanted).field.as_deref(), Some("spec.env.name"));
        assert_eq!(refused(&spec(argv(&[]))).field.as_deref(), Some("spec.argv.args"));
        let mut wanted = spec(argv(&["true"]));
        wanted.user = "root".into();
        let refusal = check(Driver::Exec, &wanted).unwrap_err();
        assert_eq!(
            (refusal.reason, refusal.metadata["capability"].as_str()),
            (ErrorReason::CapabilityMissing, "exec.user")
        );
    }
}
