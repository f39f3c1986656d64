//! The code that a command line exits with for what became of a command.

use sandgate::{
    Outcome,
    v1::{ExecExit, exec_exit::Status, start_failure::Reason},
};

/// As timeout(1).
const TIMED_OUT: u8 = 124;
/// Sandgate failed, and not the command.
pub(crate) const FAILED: u8 = 125;
/// As shells.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNALLED: u8 = 128;

/// What to exit with.
pub(crate) fn code(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::StartFailed(failure) => match failure.reason() {
            Reason::NotFound => NOT_FOUND,
            Reason::NotExecutable => NOT_EXECUTABLE,
            _ => FAILED,
        },
        Outcome::Exited(exit) => exited(exit),
    }
}

fn exited(exit: &ExecExit) -> u8 {
    if exit.timed_out {
        return TIMED_OUT;
    }
    match exit.status {
        // What the kernel keeps of a code.
        Some(Status::Code(code)) => (code & 0xff) as u8,
        Some(Status::Signal(signal)) => by_signal(signal),
        Some(Status::Lost(_)) | None => FAILED,
    }
}

/// The code for an end by a signal.
pub(crate) fn by_signal(signal: i32) -> u8 {
    u8::try_from(signal)
        .ok()
        .and_then(|signal| SIGNALLED.checked_add(signal))
        .unwrap_or(u8::MAX)
}

/// What a person should know about an end, beside its code.
pub(crate) fn remark(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::StartFailed(failure) => Some(format!("the command can't be started: {}", failure.message)),
        Outcome::Exited(exit) if matches!(exit.status, Some(Status::Lost(_)) | None) => {
            Some("the sandbox was stopped or crashed while the command ran: how it ended is not known".into())
        }
        Outcome::Exited(exit) if exit.timed_out => Some("the command timed out".into()),
        Outcome::Exited(exit) => match exit.out_of_memory {
            0 => None,
            1 => Some("one process of the command was killed for want of memory".into()),
            count => Some(format!(
                "{count} processes of the command were killed for want of memory"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use sandgate::v1::{ExecLost, StartFailure};

    use super::*;

    fn exit(status: Status, timed_out: bool) -> Outcome {
        Outcome::Exited(ExecExit {
            status: Some(status),
            timed_out,
            ..ExecExit::default()
        })
    }

    fn not_started(reason: Reason) -> Outcome {
        Outcome::StartFailed(StartFailure {
            reason: reason.into(),
            message: "why".into(),
        })
    }

    #[test]
    fn codes_are_those_of_a_shell() {
        for (outcome, expected) in [
            (exit(Status::Code(0), false), 0),
            (exit(Status::Code(255), false), 255),
            (exit(Status::Signal(9), false), 137),
            (exit(Status::Signal(64), false), 192),
            (exit(Status::Signal(15), true), 124),
            (exit(Status::Code(0), true), 124),
            (exit(Status::Lost(ExecLost {}), false), 125),
            (Outcome::Exited(ExecExit::default()), 125),
            (not_started(Reason::NotFound), 127),
            (not_started(Reason::NotExecutable), 126),
            (not_started(Reason::BadCwd), 125),
            (not_started(Reason::Unspecified), 125),
        ] {
            assert_eq!(code(&outcome), expected, "{outcome:?}");
        }
    }

    #[test]
    fn only_what_a_code_does_not_say_is_remarked() {
        assert_eq!(remark(&exit(Status::Code(1), false)), None);
        assert_eq!(remark(&exit(Status::Signal(9), false)), None);
        assert!(remark(&exit(Status::Signal(9), true)).is_some());
        assert!(remark(&exit(Status::Lost(ExecLost {}), false)).is_some());
        assert!(remark(&not_started(Reason::BadCwd)).is_some_and(|remark| remark.ends_with("why")));
    }
}
