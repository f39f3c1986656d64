//! Execs: requests lose what is the server's.

use sandgate_proto::{
    runtime::v1::{self as runtime, exec_request::Request as Runtime},
    v1::{self as public, exec_request::Request as Public},
};

use super::{ConvertError, IntoRuntime, requests, same_wire};

requests! {
    StartExecRequest {
        expects: expected_incarnation,
        resumes: auto_resume,
        moves: [exec_id],
        twins: [spec],
    }
    ExecStart {
        expects: expected_incarnation,
        resumes: auto_resume,
        moves: [exec_id, writer],
        twins: [spec, from],
    }
    ExecAttach {
        expects: expected_incarnation,
        resumes: auto_resume,
        moves: [exec_id, writer],
        twins: [from],
    }
    FollowExecRequest {
        expects: expected_incarnation,
        resumes: auto_resume,
        moves: [no_wait],
        twins: [targets],
    }
    WriteExecRequest {
        expects: expected_incarnation,
        moves: [exec_id, writer, max_wait],
        twins: [stdin],
    }
    SignalExecRequest {
        expects: expected_incarnation,
        moves: [exec_id],
        twins: [signal],
    }
    ResizeExecRequest {
        expects: expected_incarnation,
        moves: [exec_id],
        twins: [size],
    }
    GetExecRequest {
        resumes: auto_resume,
        moves: [exec_id],
        twins: [],
    }
    ListExecsRequest {
        resumes: auto_resume,
        moves: [page_size, page_token, only_alive],
        twins: [],
    }
    RunRequest {
        expects: expected_incarnation,
        resumes: auto_resume,
        moves: [exec_id, max_wait, on_caller_gone, caller_grace],
        twins: [spec, budget],
    }
}

impl IntoRuntime for public::ExecRequest {
    type Runtime = runtime::ExecRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let request = match self.request.ok_or(ConvertError::Missing("request"))? {
            // First, because it is nearly all that streams carry: its bytes move and are not copied.
            Public::Stdin(public::StdinWrite { offset, data, close }) => {
                Runtime::Stdin(runtime::StdinWrite { offset, data, close })
            }
            Public::Start(start) => Runtime::Start(start.into_runtime()?),
            Public::Attach(attach) => Runtime::Attach(attach.into_runtime()?),
            Public::Resize(size) => Runtime::Resize(same_wire(&size)?),
            Public::Signal(signal) => Runtime::Signal(same_wire(&signal)?),
            Public::Detach(detach) => Runtime::Detach(same_wire(&detach)?),
        };
        Ok(runtime::ExecRequest { request: Some(request) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{Address, Addressed as _};

    fn spec() -> public::ExecSpec {
        public::ExecSpec {
            command: Some(public::exec_spec::Command::Shell("echo".into())),
            env: vec![public::EnvVar {
                name: "A".into(),
                value_raw: vec![0xff].into(),
                ..Default::default()
            }],
            umask: Some(0),
            pty: Some(public::Pty {
                size: Some(public::PtySize { columns: 80, rows: 24 }),
                term: "vt100".into(),
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_start_keeps_all_but_what_is_the_servers() {
        let public = public::StartExecRequest {
            sandbox: "box".into(),
            exec_id: "e1".into(),
            expected_incarnation: "i1".into(),
            auto_resume: true,
            spec: Some(spec()),
        };
        let address = Address {
            sandbox: "box",
            expected_incarnation: "i1",
            auto_resume: true,
        };
        assert_eq!(public.address(), address);
        let runtime = public.into_runtime().unwrap();
        assert_eq!(
            (runtime.exec_id.as_str(), runtime.expected_incarnation.as_str()),
            ("e1", "i1")
        );
        let spec = runtime.spec.unwrap();
        assert_eq!(spec.command, Some(runtime::exec_spec::Command::Shell("echo".into())));
        assert_eq!(spec.env[0].value_raw.as_ref(), [0xff]);
        assert_eq!(spec.umask, Some(0));
        assert_eq!(spec.pty.unwrap().size.unwrap().columns, 80);
    }

    #[test]
    fn what_a_request_can_not_ask_for_is_not_asked() {
        let signal = public::SignalExecRequest {
            sandbox: "box".into(),
            expected_incarnation: "i1".into(),
            ..Default::default()
        };
        assert_eq!(
            (signal.address().expected_incarnation, signal.address().auto_resume),
            ("i1", false)
        );
        let get = public::GetExecRequest {
            sandbox: "box".into(),
            auto_resume: true,
            ..Default::default()
        };
        assert_eq!(
            (get.address().expected_incarnation, get.address().auto_resume),
            ("", true)
        );
    }

    #[test]
    fn a_stream_message_must_say_something() {
        let empty = public::ExecRequest { request: None };
        assert_eq!(empty.into_runtime(), Err(ConvertError::Missing("request")));
        let detach = public::ExecRequest {
            request: Some(Public::Detach(public::ExecDetach {})),
        };
        assert!(matches!(
            detach.into_runtime().unwrap().request,
            Some(Runtime::Detach(_))
        ));
    }

    #[test]
    fn stdin_moves() {
        let data = prost::bytes::Bytes::from(vec![7; 100]);
        let stdin = public::StdinWrite {
            offset: 9,
            data: data.clone(),
            close: true,
        };
        let message = public::ExecRequest {
            request: Some(Public::Stdin(stdin)),
        };
        let Some(Runtime::Stdin(stdin)) = message.into_runtime().unwrap().request else {
            panic!("not stdin")
        };
        assert_eq!(
            (stdin.offset, stdin.data.as_ptr(), stdin.close),
            (9, data.as_ptr(), true)
        );
    }
}
