//! The messages that are the same on the wire in both packages, and the proof that they are.

use sandgate_proto::{runtime::v1 as runtime, v1 as public};

/// Promises that a message has a twin: the same fields, numbers, types and labels, down to the last nested one.
pub trait SameWire<Twin> {}

macro_rules! same_wire {
    ($($name:ident),+ $(,)?) => {
        $(
            impl SameWire<runtime::$name> for public::$name {}
            impl SameWire<public::$name> for runtime::$name {}
        )+

        #[cfg(test)]
        const PAIRS: &[&str] = &[$(stringify!($name)),+];
    };
}

same_wire! {
    // Of requests.
    DownloadPath,
    ExecDetach,
    ExecSignal,
    ExecSpec,
    EnvVar,
    FileOp,
    FileView,
    FollowFrom,
    FollowTarget,
    OutputBudget,
    PtySize,
    StdinWrite,
    UploadEntry,
    UploadEntryEnd,
    // Answers, whole.
    DownloadResponse,
    ExecEvent,
    ExecResponse,
    FileOpsResponse,
    FollowExecResponse,
    GetExecResponse,
    ListExecsResponse,
    ResizeExecResponse,
    RunResponse,
    SignalExecResponse,
    StartExecResponse,
    StdinAccepted,
    UploadResponse,
    WatchFilesResponse,
    WriteChunkResponse,
    WriteExecResponse,
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use prost::Message as _;
    use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};

    use super::*;

    const PUBLIC: &str = ".sandgate.v1.";
    const RUNTIME: &str = ".sandgate.runtime.v1.";

    /// Where the runtime's package keeps what is not a request or an answer.
    const VALUE_FILES: &[&str] = &["sandgate/runtime/v1/exec.proto", "sandgate/runtime/v1/files.proto"];

    /// Enums of requests that are converted by hand: their numbers pass as they are.
    const ENUMS: &[&str] = &["OnCallerGone", "TransferFormat"];

    /// Messages of the runtime's value files that differ, each converted by hand.
    const DIFFERENT: &[&str] = &["UploadStart"];

    /// Every message and enum by its full name.
    struct Types {
        messages: BTreeMap<String, DescriptorProto>,
        enums: BTreeMap<String, EnumDescriptorProto>,
    }

    impl Types {
        fn load() -> Self {
            let mut types = Self {
                messages: BTreeMap::new(),
                enums: BTreeMap::new(),
            };
            for file in FileDescriptorSet::decode(sandgate_proto::FILE_DESCRIPTOR_SET)
                .unwrap()
                .file
            {
                let package = format!(".{}.", file.package());
                types.add(&package, &file.message_type, &file.enum_type);
            }
            types
        }

        fn add(&mut self, prefix: &str, messages: &[DescriptorProto], enums: &[EnumDescriptorProto]) {
            for message in messages {
                let name = format!("{prefix}{}", message.name());
                self.add(&format!("{name}."), &message.nested_type, &message.enum_type);
                self.messages.insert(name, message.clone());
            }
            for one in enums {
                self.enums.insert(format!("{prefix}{}", one.name()), one.clone());
            }
        }

        /// What counts on the wire and in generated code: one line a field or value, sorted.
        fn shape(&self, name: &str) -> Vec<String> {
            let mut lines: Vec<String> = if let Some(message) = self.messages.get(name) {
                message.field.iter().map(|field| field_shape(message, field)).collect()
            } else {
                let values = &self.enums.get(name).unwrap_or_else(|| panic!("no type {name}")).value;
                values
                    .iter()
                    .map(|value| format!("{} = {}", value.name(), value.number()))
                    .collect()
            };
            lines.sort();
            lines
        }

        fn referenced(&self, name: &str) -> BTreeSet<String> {
            let fields = self.messages.get(name).map_or(&[][..], |message| &message.field);
            fields.iter().filter_map(|field| field.type_name.clone()).collect()
        }

        /// Compares a type with its twin, and what it refers to; `seen` collects what was compared.
        fn compare(&self, name: &str, seen: &mut BTreeSet<String>, differences: &mut Vec<String>) {
            if !seen.insert(name.to_owned()) {
                return;
            }
            let (ours, theirs) = (format!("{PUBLIC}{name}"), format!("{RUNTIME}{name}"));
            let (left, right) = (self.shape(&ours), self.shape(&theirs));
            if left != right {
                differences.push(format!("{name}:\n  public  {left:#?}\n  runtime {right:#?}"));
            }
            for reference in self.referenced(&theirs) {
                if let Some(nested) = reference.strip_prefix(RUNTIME) {
                    self.compare(nested, seen, differences);
                }
            }
        }
    }

    fn field_shape(message: &DescriptorProto, field: &prost_types::FieldDescriptorProto) -> String {
        let one_of = field.oneof_index.map(|index| message.oneof_decl[index as usize].name());
        // A type of one package stands for its twin in the other; types that both share keep their names.
        let twin = field.type_name().replace(RUNTIME, PUBLIC);
        format!(
            "{} = {}: {:?} {:?} {twin} in {one_of:?}",
            field.name(),
            field.number(),
            field.label(),
            field.r#type()
        )
    }

    /// The names of everything compared, and what differs.
    fn compare_all(types: &Types) -> (BTreeSet<String>, Vec<String>) {
        let (mut seen, mut differences) = (BTreeSet::new(), Vec::new());
        for name in PAIRS.iter().chain(ENUMS) {
            types.compare(name, &mut seen, &mut differences);
        }
        (seen, differences)
    }

    #[test]
    fn declared_pairs_are_the_same_on_the_wire() {
        let (seen, differences) = compare_all(&Types::load());
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        assert!(
            seen.contains("FileOpNotRun.Why") && seen.contains("ExecLost"),
            "nested types were compared"
        );
    }

    #[test]
    fn every_value_of_the_runtime_has_its_twin() {
        let (seen, _) = compare_all(&Types::load());
        let mut count = 0;
        for file in FileDescriptorSet::decode(sandgate_proto::FILE_DESCRIPTOR_SET)
            .unwrap()
            .file
        {
            if !VALUE_FILES.contains(&file.name()) {
                continue;
            }
            let messages = file.message_type.iter().map(DescriptorProto::name);
            for name in messages.chain(file.enum_type.iter().map(EnumDescriptorProto::name)) {
                count += 1;
                assert!(
                    seen.contains(name) != DIFFERENT.contains(&name),
                    "{name}: in no pair, or wrongly in DIFFERENT"
                );
            }
        }
        assert!(count > 60, "only {count} types found");
    }

    #[test]
    fn a_difference_is_found() {
        let mut types = Types::load();
        types.messages.get_mut(&format!("{RUNTIME}ExecOffsets")).unwrap().field[0].number = Some(99);
        let (_, differences) = compare_all(&types);
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert!(differences[0].starts_with("ExecOffsets:"));
    }
}
