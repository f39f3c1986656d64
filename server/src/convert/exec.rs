//! Execs: requests lose what is the server's, answers pass as they are.

use sandgate_proto::{
    runtime::v1::{self as runtime, exec_request::Request as RuntimeExec},
    v1::{self as public, exec_event::Event as PublicEvent, exec_request::Request as PublicExec},
};

use super::{ConvertError, IntoPublic, IntoRuntime, same_wire, same_wire_all, same_wire_option};

impl IntoRuntime for public::StartExecRequest {
    type Runtime = runtime::StartExecRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            exec_id,
            expected_incarnation,
            auto_resume: _,
            spec,
        } = self;
        Ok(runtime::StartExecRequest {
            exec_id,
            expected_incarnation,
            spec: same_wire_option(spec.as_ref())?,
        })
    }
}

impl IntoRuntime for public::ExecRequest {
    type Runtime = runtime::ExecRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let request = match self.request.ok_or(ConvertError::Missing("request"))? {
            PublicExec::Start(start) => RuntimeExec::Start(start.into_runtime()?),
            PublicExec::Attach(attach) => RuntimeExec::Attach(attach.into_runtime()?),
            PublicExec::Stdin(stdin) => RuntimeExec::Stdin(same_wire(&stdin)?),
            PublicExec::Resize(size) => RuntimeExec::Resize(same_wire(&size)?),
            PublicExec::Signal(signal) => RuntimeExec::Signal(same_wire(&signal)?),
            PublicExec::Detach(detach) => RuntimeExec::Detach(same_wire(&detach)?),
        };
        Ok(runtime::ExecRequest { request: Some(request) })
    }
}

impl IntoRuntime for public::ExecStart {
    type Runtime = runtime::ExecStart;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            exec_id,
            expected_incarnation,
            auto_resume: _,
            spec,
            from,
            writer,
        } = self;
        Ok(runtime::ExecStart {
            exec_id,
            expected_incarnation,
            spec: same_wire_option(spec.as_ref())?,
            from: same_wire_option(from.as_ref())?,
            writer,
        })
    }
}

impl IntoRuntime for public::ExecAttach {
    type Runtime = runtime::ExecAttach;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            exec_id,
            expected_incarnation,
            auto_resume: _,
            from,
            writer,
        } = self;
        Ok(runtime::ExecAttach {
            exec_id,
            expected_incarnation,
            from: same_wire_option(from.as_ref())?,
            writer,
        })
    }
}

impl IntoRuntime for public::FollowExecRequest {
    type Runtime = runtime::FollowExecRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            targets,
            no_wait,
            expected_incarnation,
            auto_resume: _,
        } = self;
        Ok(runtime::FollowExecRequest {
            targets: same_wire_all(&targets)?,
            no_wait,
            expected_incarnation,
        })
    }
}

impl IntoRuntime for public::WriteExecRequest {
    type Runtime = runtime::WriteExecRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            exec_id,
            expected_incarnation,
            stdin,
            writer,
            max_wait,
        } = self;
        let stdin = same_wire_option(stdin.as_ref())?;
        Ok(runtime::WriteExecRequest {
            exec_id,
            expected_incarnation,
            stdin,
            writer,
            max_wait,
        })
    }
}

impl IntoRuntime for public::SignalExecRequest {
    type Runtime = runtime::SignalExecRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            exec_id,
            expected_incarnation,
            signal,
        } = self;
        Ok(runtime::SignalExecRequest {
            exec_id,
            expected_incarnation,
            signal: same_wire_option(signal.as_ref())?,
        })
    }
}

impl IntoRuntime for public::ResizeExecRequest {
    type Runtime = runtime::ResizeExecRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            exec_id,
            expected_incarnation,
            size,
        } = self;
        Ok(runtime::ResizeExecRequest {
            exec_id,
            expected_incarnation,
            size: same_wire_option(size.as_ref())?,
        })
    }
}

impl IntoRuntime for public::GetExecRequest {
    type Runtime = runtime::GetExecRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            exec_id,
            auto_resume: _,
        } = self;
        Ok(runtime::GetExecRequest { exec_id })
    }
}

impl IntoRuntime for public::ListExecsRequest {
    type Runtime = runtime::ListExecsRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            page_size,
            page_token,
            only_alive,
            auto_resume: _,
        } = self;
        Ok(runtime::ListExecsRequest {
            page_size,
            page_token,
            only_alive,
        })
    }
}

impl IntoRuntime for public::RunRequest {
    type Runtime = runtime::RunRequest;

    fn into_runtime(self) -> Result<Self::Runtime, ConvertError> {
        let Self {
            sandbox: _,
            exec_id,
            expected_incarnation,
            auto_resume: _,
            spec,
            max_wait,
            budget,
            on_caller_gone,
            caller_grace,
        } = self;
        Ok(runtime::RunRequest {
            exec_id,
            expected_incarnation,
            spec: same_wire_option(spec.as_ref())?,
            max_wait,
            budget: same_wire_option(budget.as_ref())?,
            on_caller_gone,
            caller_grace,
        })
    }
}

/// Written out for output, which is nearly all that streams carry: its bytes move and are not copied.
impl IntoPublic for runtime::ExecEvent {
    type Public = public::ExecEvent;

    fn into_public(self) -> Result<Self::Public, ConvertError> {
        use runtime::exec_event::Event;
        let Self {
            exec_id,
            sequence,
            event: Some(Event::Output(output)),
        } = self
        else {
            return same_wire(&self);
        };
        let runtime::ExecOutput { stream, offset, data } = output;
        let event = PublicEvent::Output(public::ExecOutput { stream, offset, data });
        Ok(public::ExecEvent {
            exec_id,
            sequence,
            event: Some(event),
        })
    }
}

impl IntoPublic for runtime::FollowExecResponse {
    type Public = public::FollowExecResponse;

    fn into_public(self) -> Result<Self::Public, ConvertError> {
        let Self { event } = self;
        Ok(public::FollowExecResponse {
            event: event.map(IntoPublic::into_public).transpose()?,
        })
    }
}

impl IntoPublic for runtime::ExecResponse {
    type Public = public::ExecResponse;

    fn into_public(self) -> Result<Self::Public, ConvertError> {
        use public::exec_response::Response as Public;
        use runtime::exec_response::Response as Runtime;
        let response = match self.response.ok_or(ConvertError::Missing("response"))? {
            Runtime::Event(event) => Public::Event(event.into_public()?),
            Runtime::Stdin(stdin) => Public::Stdin(same_wire(&stdin)?),
        };
        Ok(public::ExecResponse {
            response: Some(response),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_stream_message_must_say_something() {
        let empty = public::ExecRequest { request: None };
        assert_eq!(empty.into_runtime(), Err(ConvertError::Missing("request")));
        let detach = public::ExecRequest {
            request: Some(PublicExec::Detach(public::ExecDetach {})),
        };
        assert!(matches!(
            detach.into_runtime().unwrap().request,
            Some(RuntimeExec::Detach(_))
        ));
    }

    #[test]
    fn output_moves_and_other_events_pass() {
        use runtime::exec_event::Event;
        let data = prost::bytes::Bytes::from(vec![7; 100]);
        let output = runtime::ExecOutput {
            stream: 1,
            offset: 9,
            data: data.clone(),
        };
        let event = |event| runtime::ExecEvent {
            exec_id: "e".into(),
            sequence: 3,
            event: Some(event),
        };
        let public = event(Event::Output(output)).into_public().unwrap();
        let Some(PublicEvent::Output(output)) = public.event else {
            panic!("{public:?}")
        };
        assert_eq!(
            (output.stream, output.offset, output.data.as_ptr()),
            (1, 9, data.as_ptr())
        );

        let gap = runtime::ExecGap {
            stream: 2,
            from: 5,
            to: 8,
        };
        let public = event(Event::Gap(gap)).into_public().unwrap();
        assert_eq!((public.exec_id.as_str(), public.sequence), ("e", 3));
        assert_eq!(
            public.event,
            Some(PublicEvent::Gap(public::ExecGap {
                stream: 2,
                from: 5,
                to: 8
            }))
        );
    }
}
