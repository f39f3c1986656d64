//! Names in the state directory and in a sandbox's own.

/// In the state directory: the sandboxes, each under its name.
pub const SANDBOXES: &str = "sandboxes";
/// In the state directory: sandboxes that are being made, each under its uid.
pub const NEW: &str = "new";
/// In the state directory: what is being removed, each under its uid.
pub const TRASH: &str = "trash";
/// In the state directory: what could not be read, set aside for a person to look at.
pub const DAMAGED: &str = "damaged";
/// In the state directory: prepared roots of the `host` kind.
pub const ROOTS: &str = "roots";

/// The server's word on the sandbox: [`crate::Record`].
pub const RECORD: &str = "sandbox.json";
/// The monitor's word: [`crate::Status`].
pub const STATUS: &str = "status.json";
/// Cgroups that are being made for a start: `Status::starting`.
pub const STARTING: &str = "starting.json";
/// The Unix socket that the monitor listens on.
pub const CONTROL: &str = "control";
/// The Unix socket that the runtime serves on.
pub const SOCKET: &str = "socket";
/// What monitor and runtime have to say, for a person.
pub const LOG: &str = "log";
/// The runtime's own state: records of execs and their output.
pub const RUNTIME: &str = "runtime";
/// The sandbox's own disk: `upper` and `work` of its overlay, and `root`, on which it is mounted.
pub const DISK: &str = "disk";
/// The file that holds the disk, where its size is limited.
pub const IMAGE: &str = "disk.img";

/// Inside the sandbox: which mechanisms keep it apart.
pub const ISOLATION_INSIDE: &str = "run/sandgate/isolation.json";
/// Inside a sandbox whose root is of the `host` kind: the number of the user `sandbox`.
pub const USER: u32 = 1000;
