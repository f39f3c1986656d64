//! Which call of the runtime's answers which request.

use prost::Message;
use sandgate_proto::{runtime::v1 as runtime, v1 as public};

use super::{IntoRuntime, SameWire};

/// A request that one call of the runtime's answers.
pub trait Call: IntoRuntime + Send + 'static {
    /// What the runtime sends.
    type Sent: SameWire<Self::Answer>;
    /// The same as callers see it: decoded from the same bytes.
    type Answer: Message + Default + 'static;
    /// The call's path.
    const PATH: &'static str;
}

macro_rules! calls {
    ($($method:ident($request:ident) -> $answer:ident),+ $(,)?) => {
        $(
            impl Call for public::$request {
                type Sent = runtime::$answer;
                type Answer = public::$answer;
                const PATH: &'static str =
                    concat!("/sandgate.runtime.v1.RuntimeService/", stringify!($method));
            }
        )+

        #[cfg(test)]
        const CALLS: &[(&str, &str, &str)] = &[$((stringify!($method), stringify!($request), stringify!($answer))),+];
    };
}

calls! {
    Exec(ExecRequest) -> ExecResponse,
    StartExec(StartExecRequest) -> StartExecResponse,
    FollowExec(FollowExecRequest) -> FollowExecResponse,
    WriteExec(WriteExecRequest) -> WriteExecResponse,
    SignalExec(SignalExecRequest) -> SignalExecResponse,
    ResizeExec(ResizeExecRequest) -> ResizeExecResponse,
    GetExec(GetExecRequest) -> GetExecResponse,
    ListExecs(ListExecsRequest) -> ListExecsResponse,
    Run(RunRequest) -> RunResponse,
    FileOps(FileOpsRequest) -> FileOpsResponse,
    Upload(UploadRequest) -> UploadResponse,
    Download(DownloadRequest) -> DownloadResponse,
    WriteChunk(WriteChunkRequest) -> WriteChunkResponse,
    WatchFiles(WatchFilesRequest) -> WatchFilesResponse,
}

#[cfg(test)]
mod tests {
    use prost_types::FileDescriptorSet;
    use sandgate_proto::runtime::v1::runtime_service_server::SERVICE_NAME;

    use super::*;

    /// Calls that the server makes for itself.
    const OWN: &[&str] = &["Hello", "Configure", "Stop"];

    #[test]
    fn every_call_of_the_runtime_is_here_with_its_types() {
        let files = FileDescriptorSet::decode(sandgate_proto::FILE_DESCRIPTOR_SET).unwrap();
        let file = "sandgate/runtime/v1/runtime_service.proto";
        let file = files.file.iter().find(|one| one.name() == file).unwrap();
        let mut described: Vec<_> = file.service[0]
            .method
            .iter()
            .filter(|method| !OWN.contains(&method.name()))
            .map(|method| (method.name(), method.input_type(), method.output_type()))
            .collect();
        described.sort_unstable();
        let full = |name: &str| format!(".sandgate.runtime.v1.{name}");
        let named: Vec<_> = CALLS.iter().map(|(m, q, a)| (*m, full(q), full(a))).collect();
        let mut named: Vec<_> = named.iter().map(|(m, q, a)| (*m, q.as_str(), a.as_str())).collect();
        named.sort_unstable();
        assert_eq!(named, described);
        assert_eq!(public::RunRequest::PATH, format!("/{SERVICE_NAME}/Run"));
    }
}
