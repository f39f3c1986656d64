//! What a fresh machine lacks, set-up brings: each tool on the list of `scripts/need` is taken away and asked for again.
//!
//! That happens in a copy of the machine (`setup/copy.sh`), with the packages of the real registries. The list says what
//! is tested, so that a new tool is covered by being on it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// A line of `scripts/need --list`.
#[derive(Debug, Clone)]
struct Item {
    tool: String,
    source: String,
    package: String,
    tested: bool,
}

/// Where commands run. They find the environment that the Makefile gives to its own, and of programs only what the base
/// system and rustup have.
struct Place {
    /// What stands before a command to run it there.
    enter: Vec<String>,
    /// Its processes and changes end with this.
    _copy: Option<(Child, TempDir)>,
}

/// With nothing cached, `cargo-deny` alone takes minutes to build while other tests run.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// What README.md asks for and Debian has: set-up may count on them, and on what they need; and what everything needs,
/// among it what brings packages. So it may on what Debian calls essential.
const BASE: [&str; 4] = ["apt", "gcc", "libc6", "python3"];
/// Nothing of /usr/local, which no package manager takes away.
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// How variables start that cargo sets for tests and make for its commands: a person's shell has none of them.
const NOT_INHERITED: [&str; 9] = [
    "CARGO_BIN_",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "LD_LIBRARY_PATH",
    "MAKEFLAGS",
    "MAKELEVEL",
    "MFLAGS",
    "RUSTUP_TOOLCHAIN",
    "RUST_RECURSION_COUNT",
];

// === the tests ===

#[tokio::test]
async fn set_up_brings_back_what_was_taken_away() {
    assert!(
        rustix::process::geteuid().is_root(),
        "a copy of the machine needs root, for its mounts"
    );
    let done = timeout(PATIENCE, take_away_and_bring_back()).await;
    done.expect("set-up was not done in time; the output says where it was");
}

/// Only what no everyday command needs may go untested.
#[tokio::test]
async fn what_everyday_commands_need_is_on_the_list_and_tested() {
    let mut tested: BTreeMap<String, bool> = BTreeMap::new();
    for item in list().await {
        *tested.entry(item.tool).or_insert(true) &= item.tested;
    }
    let needed = needed_by_targets();
    assert!(needed.len() > 5, "{needed:?}");
    for (target, tool) in needed {
        let tested = tested.get(&tool);
        let tested = tested.unwrap_or_else(|| panic!("make {target} needs {tool}, which scripts/need does not list"));
        assert!(
            *tested || ["fuzz", "bench", "bench-cluster"].contains(&target.as_str()),
            "make {target} needs {tool}, which is not tested"
        );
    }
}

async fn take_away_and_bring_back() {
    let items: Vec<Item> = list().await.into_iter().filter(|item| item.tested).collect();
    let machine = Place::machine();
    let before = traces(&machine, &items).await;
    let copy = Place::copy().await;

    println!("taking away {} items", items.len());
    take_all(&copy, &items).await;
    for item in &items {
        assert_gone(&copy, item).await;
    }
    for item in &items {
        let start = Instant::now();
        println!("{} ({} {})", item.tool, item.source, item.package);
        // It may be back already, as a part of what came before.
        item.take(&copy).await;
        assert_gone(&copy, item).await;
        let said = copy.must(&format!("scripts/need {}", item.tool)).await;
        let back = item.trace(&copy).await;
        assert!(back.is_some(), "{item:?} is not back after:\n{said}");
        copy.must(&format!("scripts/need --check {}", item.tool)).await;
        println!("    back after {:.1?}", start.elapsed());
    }

    for (item, before) in items.iter().zip(before) {
        if let Some(before) = before {
            let after = item.trace(&machine).await;
            assert_eq!(after, Some(before), "{item:?} of the machine itself was touched");
        }
    }
}

async fn assert_gone(copy: &Place, item: &Item) {
    let trace = item.trace(copy).await;
    assert_eq!(trace, None, "{item:?} could not be taken away");
    let check = copy.run(&format!("scripts/need --check {}", item.tool)).await;
    assert!(
        !check.status.success(),
        "{item:?} is gone, and scripts/need does not see it"
    );
}

/// All at once, as on a machine that never had them. What others need is listed first and goes last.
async fn take_all(copy: &Place, items: &[Item]) {
    let debian = items.iter().filter(|item| item.source == "debian");
    purge(copy, debian.map(|item| item.package.clone()).collect()).await;
    // A fresh image has none of these either.
    copy.must("rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb")
        .await;
    for item in items.iter().rev() {
        item.take(copy).await;
    }
}

/// Removes packages from Debian with what depends on them, and with their own parts (a package may be but a name for
/// others), the base system's excepted. It leaves nothing broken, which apt would refuse to add to.
async fn purge(copy: &Place, packages: BTreeSet<String>) {
    let parts = &depends(copy, &packages).await - &base(copy).await;
    let all = &packages | &parts;
    let query = format!(
        "dpkg-query -W -f '${{db:Status-Status}} ${{Essential}} ${{Package}}\\n' {}",
        words(&all)
    );
    let (_, states) = copy.said(&query).await;
    let there: BTreeSet<String> = states
        .lines()
        .filter_map(|line| line.strip_prefix("installed no "))
        .map(str::to_owned)
        .collect();
    if !there.is_empty() {
        copy.must(&format!(
            "DEBIAN_FRONTEND=noninteractive apt-get purge -qq -y {}",
            words(&there)
        ))
        .await;
    }
}

/// The base system, down to its last library.
async fn base(copy: &Place) -> BTreeSet<String> {
    let (_, all) = copy
        .said("dpkg-query -W -f '${db:Status-Status} ${Essential} ${Package}\\n'")
        .await;
    let essential = all.lines().filter_map(|line| line.strip_prefix("installed yes "));
    let mut base: BTreeSet<String> = BASE.into_iter().chain(essential).map(str::to_owned).collect();
    loop {
        let known = base.len();
        base.append(&mut depends(copy, &base).await);
        if base.len() == known {
            return base;
        }
    }
}

/// The names of the packages that some depend on directly.
async fn depends(copy: &Place, packages: &BTreeSet<String>) -> BTreeSet<String> {
    // It fails if one of them is not installed, and names the others' all the same.
    let (_, lines) = copy
        .said(&format!(
            "dpkg-query -W -f '${{Depends}}\\n${{Pre-Depends}}\\n' {} 2>/dev/null",
            words(packages)
        ))
        .await;
    let alternatives = lines
        .split(['\n', ',', '|'])
        .map(|name| name.split([' ', ':', '(']).find(|word| !word.is_empty()));
    alternatives.flatten().map(str::to_owned).collect()
}

fn words(names: &BTreeSet<String>) -> String {
    names.iter().cloned().collect::<Vec<_>>().join(" ")
}

async fn traces(place: &Place, items: &[Item]) -> Vec<Option<String>> {
    let mut traces = Vec::new();
    for item in items {
        traces.push(item.trace(place).await);
    }
    traces
}

async fn list() -> Vec<Item> {
    let lines = Place::machine().must("scripts/need --list").await;
    let items: Vec<Item> = lines.lines().map(Item::parse).collect();
    assert!(!items.is_empty());
    items
}

/// The Makefile's targets with the tools that they ask for.
fn needed_by_targets() -> Vec<(String, String)> {
    let mut target = "";
    let mut needed = Vec::new();
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    for line in makefile.lines() {
        if let Some(tools) = line.trim_start().strip_prefix("@$(NEED) ") {
            needed.extend(
                tools
                    .split_whitespace()
                    .map(|tool| (target.to_owned(), tool.to_owned())),
            );
        } else if let Some((name, _)) = line.split_once(':')
            && !name.starts_with(['\t', '.', '#'])
        {
            target = name;
        }
    }
    needed
}

fn root() -> PathBuf {
    fs::canonicalize("..").unwrap()
}

// === impl Item ===

impl Item {
    fn parse(line: &str) -> Self {
        let fields: Vec<&str> = line.split('\t').collect();
        let [tool, source, package, note] = fields[..] else {
            panic!("four fields: {line:?}")
        };
        assert!(note == "tested" || note.starts_with("untested: "), "{line:?}");
        Self {
            tool: tool.to_owned(),
            source: source.to_owned(),
            package: package.to_owned(),
            tested: note == "tested",
        }
    }

    /// What the package's manager says of it, and from when it is; none if it is not installed. That does not rest on what
    /// `scripts/need` looks at.
    async fn trace(&self, place: &Place) -> Option<String> {
        let Self { tool, package, .. } = self;
        let stat = "stat -L -c '%d %i %y'";
        let command = match self.source.as_str() {
            "debian" => {
                format!("dpkg-query -W -f '${{db:Status-Status}} ${{Version}}\\n' {package} | grep '^installed '")
            }
            "rustup-toolchain" => format!("{stat} \"$(rustc +{package} --print sysroot)\""),
            "rustup-component" => format!("rustup component list --installed | grep -E '^{package}(-|$)'"),
            "rustup-target" => format!(
                "rustup target list --installed | grep -x {package}; {stat} \"$(rustc --print sysroot)/lib/rustlib/{package}\""
            ),
            "pypi" => format!(
                "\"$SANDGATE_TOOLS/{tool}/bin/pip\" freeze --local | grep -x {package}; {stat} \"$SANDGATE_TOOLS/{tool}/pyvenv.cfg\""
            ),
            "crate" => {
                let (name, version) = package.split_once('@').unwrap();
                format!(
                    "cargo install --list --root \"$SANDGATE_TOOLS\" | grep -x '{name} v{version}:'; \
                     {stat} \"$SANDGATE_TOOLS/bin/{name}\""
                )
            }
            "go" => format!("{stat} \"$SANDGATE_TOOLS/{package}\""),
            other => panic!("a source that this test can't take away: {other}"),
        };
        let (success, trace) = place.said(&command).await;
        success.then_some(trace)
    }

    /// Takes it away, if it is there.
    async fn take(&self, copy: &Place) {
        let package = &self.package;
        if self.trace(copy).await.is_none() {
            return;
        }
        let command = match self.source.as_str() {
            "debian" => return purge(copy, [package.clone()].into()).await,
            "rustup-toolchain" => format!("rustup toolchain uninstall {package}"),
            "rustup-component" => format!("rustup component remove {package}"),
            "rustup-target" => format!("rustup target remove {package}"),
            _ => "rm -rf \"$SANDGATE_TOOLS\"".to_owned(),
        };
        copy.must(&command).await;
    }
}

// === impl Place ===

impl Place {
    fn machine() -> Self {
        let enter = vec!["env".to_owned()];
        Self { enter, _copy: None }
    }

    async fn copy() -> Self {
        let machine = Self::machine();
        let scratch = tempfile::tempdir().unwrap();
        let cache = machine.must("dirname \"$SANDGATE_TOOLS\"").await;
        let homes = machine
            .must("echo \"${RUSTUP_HOME:-$HOME/.rustup}\"; echo \"${CARGO_HOME:-$HOME/.cargo}\"")
            .await;
        fs::create_dir_all(cache.trim()).unwrap();
        let mut holder = Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--ipc",
                "--fork",
                "--kill-child",
                "--propagation",
                "private",
                "bash",
            ])
            .arg(root().join("tests/setup/copy.sh"))
            .arg(scratch.path())
            // What was compiled once need not be compiled again; it is no tool.
            .arg(Path::new(cache.trim()).join("builds"))
            .arg(root())
            .arg(cache.trim())
            .args(homes.lines())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut said = BufReader::new(holder.stdout.take().unwrap()).lines();
        let ready = said.next_line().await.unwrap().expect("a copy of the machine");
        let pid = ready.strip_prefix("ready ").unwrap();
        let enter = ["nsenter", "--target", pid, "--mount", "--pid", "--ipc", "--root"].map(str::to_owned);
        Self {
            enter: enter.into(),
            _copy: Some((holder, scratch)),
        }
    }

    /// Runs a command as a recipe of the Makefile would, at the root of the repository.
    async fn run(&self, command: &str) -> Output {
        let mut make = Command::new(&self.enter[0]);
        let foreign = |name: &OsString| {
            NOT_INHERITED
                .iter()
                .any(|start| name.to_string_lossy().starts_with(start))
        };
        for name in env::vars_os().map(|(name, _)| name).filter(foreign) {
            make.env_remove(name);
        }
        make.args(&self.enter[1..]).arg("make");
        make.args([
            "--no-print-directory",
            "--eval",
            "step: ; @eval \"$$STEP\" 2>&1",
            "step",
            "-C",
        ])
        .arg(root())
        .env("STEP", command)
        .env("PATH", format!("{}:{SYSTEM_PATH}", rustup_dir().display()))
        .env("RUSTUP_AUTO_INSTALL", "0")
        .stdin(Stdio::null())
        .kill_on_drop(true);
        make.output().await.unwrap()
    }

    /// Whether a command succeeded, and what it said.
    async fn said(&self, command: &str) -> (bool, String) {
        let output = self.run(command).await;
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    }

    async fn must(&self, command: &str) -> String {
        let (success, said) = self.said(command).await;
        assert!(success, "{command}\n{said}");
        said
    }
}

/// Where rustup is: the one toolchain that is not the base system's.
fn rustup_dir() -> PathBuf {
    let path = env::var_os("PATH").unwrap();
    let found = env::split_paths(&path).find(|dir| dir.join("rustup").is_file());
    found.expect("rustup")
}
