//! The configuration: where values come from, and every mistake that can be made.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "config/mistakes.rs"]
mod mistakes;

use std::{path::PathBuf, time::Duration};

use sandgate_proto::v1::ConnectionMode;
use sandgate_server::{
    Config, Process, Sources,
    config::{ConfigFile, Isolation, KubernetesConfig, LocalConfig, Network, ProviderConfig, Root},
};

const FILE: &str = "/etc/sandgate/server.toml";

fn sources(text: &str) -> Sources {
    Sources {
        file: Some(ConfigFile {
            path: FILE.into(),
            text: text.to_owned(),
        }),
        process: Process {
            root: true,
            cwd: "/home/me".into(),
            program_dir: "/usr/bin".into(),
        },
        ..Sources::default()
    }
}

fn with(mut sources: Sources, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Sources {
    let owned = |pair: &(&str, &str)| (pair.0.to_owned(), pair.1.to_owned());
    sources.environment.extend(environment.iter().map(owned));
    sources.flags.extend(flags.iter().map(owned));
    sources
}

fn resolve(text: &str) -> Config {
    Config::resolve(&sources(text)).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

fn local(config: &Config) -> &LocalConfig {
    match &config.provider {
        ProviderConfig::Local(local) => local,
        other => panic!("{other:?}"),
    }
}

fn kubernetes(config: &Config) -> &KubernetesConfig {
    match &config.provider {
        ProviderConfig::Kubernetes(kubernetes) => kubernetes,
        other => panic!("{other:?}"),
    }
}

/// What is in effect, without where it came from.
fn values(config: &Config) -> Vec<String> {
    let text = config.to_toml();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.rsplit_once(" # ").map_or(line, |(value, _)| value).to_owned())
        .collect()
}

/// The line of the effective configuration about `key`.
fn line(config: &Config, key: &str) -> String {
    let all = config.to_toml();
    let found = all.lines().find(|line| line.starts_with(&format!("{key} = ")));
    found.unwrap_or_else(|| panic!("{key}: {all}")).to_owned()
}

const KUBERNETES: &str = "provider = \"kubernetes\"\n";

/// Every key of a configuration, with its section and its value.
fn keys_of(text: &str) -> Vec<String> {
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in values(&resolve(text)) {
        match line.strip_prefix('[') {
            Some(name) => section = format!("{}.", name.trim_end_matches(']')),
            None if line.is_empty() => {}
            None => keys.push(format!("{section}{line}")),
        }
    }
    keys
}

#[test]
fn everything_has_a_default() {
    let mut nothing = sources("");
    nothing.file = None;
    let config = Config::resolve(&nothing).unwrap();
    assert_eq!(config.listen.len(), 1);
    assert_eq!(config.listen[0].to_string(), "127.0.0.1:7263");
    assert_eq!(config.state_dir, PathBuf::from("/var/lib/sandgate"));
    assert!(config.is_default_state_dir());
    assert_eq!(local(&config).runtime_bin, PathBuf::from("/usr/bin/sandgate-runtime"));
    assert_eq!(local(&config).monitor_bin, PathBuf::from("/usr/bin/sandgate-monitor"));
    assert_eq!(config.limits.max_ttl.unwrap().get(), Duration::from_secs(7 * 86_400));
    let template = &local(&config).templates["default"];
    assert_eq!(template.root, Root::Host { paths: Vec::new() });
    assert_eq!((template.user.as_str(), template.network), ("sandbox", Network::None));
    assert_eq!(template.memory.unwrap().bytes(), 2 << 30);
    assert_eq!((template.cpus, template.disk, template.idle), (None, None, None));
    assert_eq!(template.ttl.unwrap().get(), Duration::from_secs(86_400));
    assert_eq!(template.env["LANG"], "C.UTF-8");
    assert!(config.warnings.is_empty());
}

#[test]
fn an_ordinary_user_has_it_at_home() {
    let mut sources = sources("");
    sources.process.root = false;
    let home = with(sources.clone(), &[("HOME", "/home/me")], &[]);
    assert_eq!(
        home.default_file().unwrap(),
        PathBuf::from("/home/me/.config/sandgate/server.toml")
    );
    let config = Config::resolve(&home).unwrap();
    assert_eq!(config.state_dir, PathBuf::from("/home/me/.local/state/sandgate"));

    let xdg = [("XDG_STATE_HOME", "/xdg/state"), ("XDG_CONFIG_HOME", "/xdg/config")];
    let xdg = with(home, &xdg, &[]);
    assert_eq!(
        xdg.default_file().unwrap(),
        PathBuf::from("/xdg/config/sandgate/server.toml")
    );
    assert_eq!(
        Config::resolve(&xdg).unwrap().state_dir,
        PathBuf::from("/xdg/state/sandgate")
    );

    let error = Config::resolve(&sources).unwrap_err().to_string();
    assert!(
        error.contains("state_dir") && error.contains("must be given"),
        "{error}"
    );
    assert!(Config::resolve(&with(sources, &[], &[("state-dir", "/x")])).is_ok());
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let text = "log = \"warn\"\nstate_dir = \"/file\"\n\n[limits]\nsandboxes = 5\nmax_ttl = \"1h\"\n";
    let environment = [
        ("SANDGATE_STATE_DIR", "environment"),
        ("SANDGATE_LIMITS_MAX_TTL", "none"),
        ("SANDGATE_LISTEN", ""),
    ];
    let flags = [("limits-max-ttl", "2h"), ("listen", "127.0.0.1:1, [::1]:2")];
    let config = Config::resolve(&with(sources(text), &environment, &flags)).unwrap();
    assert_eq!(line(&config, "log"), format!("log = \"warn\" # {FILE}:1"));
    // What is not in a file may be relative to where the server was started.
    let expected = "state_dir = \"/home/me/environment\" # environment SANDGATE_STATE_DIR";
    assert_eq!(line(&config, "state_dir"), expected);
    assert!(!config.is_default_state_dir());
    assert_eq!(line(&config, "max_ttl"), "max_ttl = \"2h\" # flag --limits-max-ttl");
    assert_eq!(
        line(&config, "listen"),
        "listen = [\"127.0.0.1:1\", \"[::1]:2\"] # flag --listen"
    );
    assert_eq!(line(&config, "sandboxes"), format!("sandboxes = 5 # {FILE}:5"));
    assert_eq!(line(&config, "max_idle"), "max_idle = \"7d\" # default");
    assert_eq!(line(&config, "memory"), "memory = \"2GiB\" # default");

    let none = Config::resolve(&with(sources(text), &[("SANDGATE_LISTEN", "none")], &[])).unwrap();
    assert!(none.listen.is_empty());
}

#[test]
fn what_is_printed_reads_as_the_same() {
    let text = r#"
        listen = []
        allowed_origins = ["http://localhost:3000", "https://app.example.com"]
        default_template = "debian"
        cgroup_parent = "/sandgate"
        limits = { max_idle = "none", streams_per_connection = 100 }
        [template.debian]
        root = "rootfs"
        rootfs = '/srv/the "debian"'
        env = { A = "line\nbreak", "odd name" = "", PATH = "/bin" }
        cpus = 1.5
        pids = "none"
        memory = 0
        disk = "10GiB"
        ttl = "none"
        idle = "90m"
        require = ["seccomp", "cgroup.memory"]
        [template.plain]
        isolation = "none"
        network = "host"
        host_paths = ["/opt/python"]
    "#;
    let config = resolve(text);
    let debian = &local(&config).templates["debian"];
    assert_eq!(debian.root, Root::Rootfs("/srv/the \"debian\"".into()));
    assert_eq!((debian.user.as_str(), debian.pids, debian.memory), ("root", None, None));
    assert_eq!(debian.cpus.unwrap().millis(), 1500);
    assert_eq!(debian.env["odd name"], "");
    assert_eq!(local(&config).templates["plain"].isolation, Isolation::None);
    assert_eq!(local(&config).templates.len(), 3, "the default is there too");
    assert_eq!(local(&config).on_host_network(), ["plain"]);

    let again = resolve(&config.to_toml());
    assert_eq!(local(&again).templates, local(&config).templates);
    assert_eq!(again.limits, config.limits);
    assert_eq!(again.allowed_origins, config.allowed_origins);
    assert_eq!(values(&again), values(&config));
}

#[test]
fn the_default_template_can_be_replaced() {
    let config = resolve("[template.default]\nuser = \"me\"\nenv = {}");
    assert_eq!(local(&config).templates.len(), 1);
    assert_eq!(local(&config).templates["default"].user, "me");
    assert!(local(&config).templates["default"].env.is_empty());
}

#[test]
fn every_key_but_templates_has_a_variable_and_a_flag() {
    use clap::CommandFactory as _;
    let mut keys = vec!["config".to_owned(), "help".to_owned(), "version".to_owned()];
    for key in keys_of("").into_iter().chain(keys_of(KUBERNETES)) {
        let (key, _) = key.split_once(" = ").unwrap();
        if !key.starts_with("template.") {
            keys.push(key.replace(['_', '.'], "-"));
        }
    }
    let command = sandgate_server::Args::command();
    let mut flags: Vec<String> = command
        .get_arguments()
        .filter_map(|arg| arg.get_long().map(str::to_owned))
        .collect();
    flags.extend(["help".to_owned(), "version".to_owned()]);
    for list in [&mut keys, &mut flags] {
        list.sort();
        list.dedup();
    }
    assert_eq!(keys, flags);
}

#[test]
fn kubernetes_has_keys_of_its_own() {
    let config = resolve(KUBERNETES);
    let cluster = kubernetes(&config);
    assert_eq!(cluster.namespaces, ["default"]);
    assert_eq!(cluster.trust_domain, "cluster.local");
    assert_eq!((cluster.make_pools, cluster.in_cluster), (true, None));
    assert_eq!(cluster.connection, ConnectionMode::Unspecified);
    assert_eq!(cluster.image_grace.get(), Duration::from_secs(60));
    assert_eq!(cluster.default_ttl.unwrap().get(), Duration::from_secs(86_400));
    assert_eq!((&cluster.default_template, &cluster.keys_dir), (&None, &None));
    assert!(cluster.gateway.is_none() && cluster.direct.is_none());
    assert!(
        config.warnings[0].contains("kubernetes.keys_dir"),
        "{:?}",
        config.warnings
    );
    assert!(!config.to_toml().contains("runtime_bin"));

    let text = r#"
        provider = "kubernetes"
        listen = ["[::]:7263"]
        allowed_hosts = ["sandgate.tools.svc", "*.example.com"]
        token_file = "/etc/sandgate/token"
        default_template = "debian"
        [kubernetes]
        kubeconfig = "/etc/kubeconfig"
        context = "test"
        namespaces = ["one", "two"]
        make_pools = false
        trust_domain = "west.example"
        keys_dir = "/etc/sandgate/keys"
        connection = "gateway"
        in_cluster = true
        image_grace = "5m"
        default_ttl = "none"
        gateway = { name = "outer", namespace = "edge", listener = "https", hostname = "x.example", ca_file = "/ca" }
        direct = { url = "https://router.example/sandboxes", headers = { authorization = "Basic eA==" } }
    "#;
    let config = resolve(text);
    let cluster = kubernetes(&config);
    assert_eq!(cluster.default_template.as_deref(), Some("debian"));
    assert_eq!(cluster.connection, ConnectionMode::Gateway);
    assert_eq!((cluster.in_cluster, cluster.default_ttl), (Some(true), None));
    let gateway = cluster.gateway.as_ref().unwrap();
    assert_eq!((gateway.name.as_str(), gateway.namespace.as_str()), ("outer", "edge"));
    let direct = cluster.direct.as_ref().unwrap();
    assert_eq!(direct.headers.map()["authorization"], "Basic eA==");
    assert_eq!(config.warnings, [""; 0]);
    let again = resolve(&config.to_toml());
    assert_eq!(values(&again), values(&config));

    let environment = [
        ("SANDGATE_PROVIDER", "kubernetes"),
        ("SANDGATE_KUBERNETES_NAMESPACES", "a,b"),
        ("SANDGATE_KUBERNETES_GATEWAY_NAME", "outer"),
    ];
    let flags = [
        ("kubernetes-gateway-namespace", "edge"),
        ("kubernetes-keys-dir", "keys"),
        ("kubernetes-in-cluster", "auto"),
    ];
    let config = Config::resolve(&with(sources(""), &environment, &flags)).unwrap();
    assert_eq!(
        line(&config, "keys_dir"),
        "keys_dir = \"/home/me/keys\" # flag --kubernetes-keys-dir"
    );
    assert_eq!(
        line(&config, "name"),
        "name = \"outer\" # environment SANDGATE_KUBERNETES_GATEWAY_NAME"
    );
    assert_eq!(kubernetes(&config).namespaces, ["a", "b"]);
}

#[test]
fn other_machines_are_let_in_behind_a_chosen_token_only() {
    for addr in ["0.0.0.0:7263", "[::]:7263", "192.0.2.1:7263"] {
        let text = format!("listen = [\"127.0.0.1:1\", \"{addr}\"]\n");
        let error = Config::resolve(&sources(&text)).unwrap_err().to_string();
        let expected = format!("{FILE}:1: listen: {addr} can be reached from other machines");
        assert!(error.starts_with(&expected) && error.contains("token_file"), "{error}");
        let config = resolve(&format!("{text}token_file = \"/etc/sandgate/token\""));
        assert_eq!(config.token_file, Some(PathBuf::from("/etc/sandgate/token")));
    }
}

#[test]
fn a_file_that_was_asked_for_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    let gather = |flags: &[(&str, &str)], environment: &[(&str, &str)]| {
        let given = with(sources(""), environment, flags);
        let process = Process {
            root: false,
            cwd: dir.path().to_owned(),
            program_dir: PathBuf::new(),
        };
        Sources::gather(given.flags, given.environment, process)
    };
    let home = ("HOME", dir.path().to_str().unwrap());
    assert!(gather(&[], &[home]).unwrap().file.is_none());
    for (flags, environment, expected) in [
        (&[("config", "x.toml")][..], &[home][..], "flag --config: can't read"),
        (
            &[],
            &[home, ("SANDGATE_CONFIG", "x.toml")],
            "environment SANDGATE_CONFIG: can't read",
        ),
    ] {
        let error = gather(flags, environment).unwrap_err().to_string();
        assert!(error.starts_with(expected) && error.contains("x.toml"), "{error}");
    }
    let default = dir.path().join(".config/sandgate/server.toml");
    std::fs::create_dir_all(default.parent().unwrap()).unwrap();
    std::fs::write(&default, "log = \"warn\"").unwrap();
    assert_eq!(gather(&[], &[home]).unwrap().file.unwrap().path, default);
    std::fs::write(dir.path().join("x.toml"), "log = \"error\"").unwrap();
    let chosen = gather(&[("config", "x.toml")], &[home]).unwrap();
    assert_eq!(chosen.file.unwrap().text, "log = \"error\"");
}

/// What the page about the server says.
fn page() -> String {
    std::fs::read_to_string("../docs/server.md").unwrap()
}

#[test]
fn the_file_in_the_docs_is_taken() {
    let page = page();
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let config = resolve(text);
    assert_eq!(local(&config).templates.len(), 3);
    assert_eq!(local(&config).default_template, "tools");
}

#[test]
fn the_keys_in_the_docs_are_those_of_the_program() {
    let page = page();
    let (_, tables) = page.split_once("<!-- keys:").unwrap();
    let rows = tables.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: Vec<String> = rows
        .map(|row| {
            let mut cells = row.split(" | ");
            let key = cells.next().unwrap().trim_end_matches('`');
            format!("{key} = {}", cells.next().unwrap().trim_matches('`'))
        })
        .collect();
    let local = keys_of("").into_iter();
    let local = local.map(|key| key.strip_prefix("template.default.").map_or(key.clone(), str::to_owned));
    let kubernetes = keys_of(KUBERNETES)
        .into_iter()
        .filter(|key| key.starts_with("kubernetes."));
    assert_eq!(documented, local.chain(kubernetes).collect::<Vec<_>>());
}
