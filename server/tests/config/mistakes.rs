//! Every mistake that can be made.

use sandgate_server::Config;

use super::{FILE, sources, with};

#[test]
fn every_mistake_names_file_and_key_and_what_was_expected() {
    for (text, place, expected) in [
        ("listen = [", ":1: not TOML:", ""),
        ("log = 1\nlog = 2", ":2: not TOML:", "duplicate"),
        ("\nlisten = \"127.0.0.1:1\"", ":2: listen:", "expected a list"),
        (
            "listen = [\"0.0.0.0:7263\"]",
            ":1: listen:",
            "name its file in token_file",
        ),
        ("listen = [7263]", ":1: listen:", "expected text, not 7263"),
        (
            "state_dir = \"state\"",
            ":1: state_dir:",
            "expected an absolute path, not \"state\"",
        ),
        (
            "state_dir = true",
            ":1: state_dir:",
            "expected an absolute path, not true",
        ),
        (
            "log = \"loud\"",
            ":1: log:",
            "expected off, error, warn, info, debug or trace",
        ),
        (
            "allowed_origins = [\"*\"]",
            ":1: allowed_origins:",
            "http://localhost:3000",
        ),
        (
            "default_template = \"debain\"\n[template.debian]",
            ":1: default_template:",
            "did you mean \"debian\"?",
        ),
        ("default_template = \"\"", ":1: default_template:", "not empty"),
        ("cgroup_parent = \"sandgate\"", ":1: cgroup_parent:", "absolute"),
        ("listne = []", ":1: listne:", "unknown key; did you mean \"listen\"?"),
        (
            "quux = 1",
            ":1: quux:",
            "unknown key; expected one of: provider, listen,",
        ),
        ("limits = 1", ":1: limits:", "expected a table, not 1"),
        ("[limit]\nsandboxes = 1", ":1: limit:", "did you mean \"limits\"?"),
        (
            "[limits]\nsandboxs = 1",
            ":2: limits.sandboxs:",
            "did you mean \"sandboxes\"?",
        ),
        (
            "[limits]\nsandboxes = -1",
            ":2: limits.sandboxes:",
            "expected a whole number, not -1",
        ),
        ("[limits]\nsandboxes = 0", ":2: limits.sandboxes:", "at least 1"),
        (
            "[limits]\nsandboxes = \"5\"",
            ":2: limits.sandboxes:",
            "expected a whole number",
        ),
        (
            "[limits]\nstreams_per_connection = 5000000000",
            ":2: limits.streams_per_connection:",
            "below 4294967296",
        ),
        (
            "[limits]\nmax_ttl = \"1 week\"",
            ":2: limits.max_ttl:",
            "expected a span such as \"90s\"",
        ),
        ("[limits]\nmax_ttl = 3600", ":2: limits.max_ttl:", "(or \"none\")"),
        ("template = 1", ":1: template:", "expected a table"),
        ("template.x = 1", ":1: template.x:", "expected a table"),
        (
            "[template.Bad_Name]\nuser = \"me\"",
            ":2: template.Bad_Name:",
            "lower-case",
        ),
        (
            "[template.x]\nroot = \"hots\"",
            ":2: template.x.root:",
            "did you mean \"host\"?",
        ),
        (
            "[template.x]\nroot = 1",
            ":2: template.x.root:",
            "expected \"host\" or \"rootfs\", not 1",
        ),
        (
            "[template.x]\nroot = \"rootfs\"",
            ":2: template.x.root:",
            "rootfs = \"/srv/debian\"",
        ),
        (
            "[template.x]\nrootfs = \"/srv\"",
            ":2: template.x.rootfs:",
            "only for root = \"rootfs\"",
        ),
        (
            "[template.x]\nroot = \"rootfs\"\nrootfs = \"/srv\"\nhost_paths = []",
            ":4: template.x.host_paths:",
            "only for root = \"host\"",
        ),
        (
            "[template.x]\nmemory = \"2GB\"",
            ":2: template.x.memory:",
            "expected a size such as \"512MiB\"",
        ),
        (
            "[template.x]\nmemory = 2048",
            ":2: template.x.memory:",
            "expected a size such as \"512MiB\"",
        ),
        ("[template.x]\ncpus = -1", ":2: template.x.cpus:", "expected a number"),
        ("[template.x]\ncpus = inf", ":2: template.x.cpus:", "expected a number"),
        (
            "[template.x]\npids = 1.5",
            ":2: template.x.pids:",
            "expected a whole number",
        ),
        (
            "[template.x]\nopen_files = 0",
            ":2: template.x.open_files:",
            "at least 1",
        ),
        ("[template.x]\nttl = \"0s\"", ":2: template.x.ttl:", "expected a span"),
        (
            "[template.x]\nnetwork = \"bridge\"",
            ":2: template.x.network:",
            "expected one of: none, host",
        ),
        (
            "[template.x]\nisolation = \"no\"",
            ":2: template.x.isolation:",
            "did you mean \"none\"?",
        ),
        (
            "[template.x]\nworkdir = \"work\"",
            ":2: template.x.workdir:",
            "absolute",
        ),
        (
            "[template.x]\nenv = [\"A=b\"]",
            ":2: template.x.env:",
            "a table of text",
        ),
        (
            "[template.x]\nenv = { A = 1 }",
            ":2: template.x.env:",
            "A: expected text, not 1",
        ),
        (
            "[template.x]\nenv = { \"A=B\" = \"\" }",
            ":2: template.x.env:",
            "no name",
        ),
        (
            "[template.x]\nrequire = [\"seccom\"]",
            ":2: template.x.require:",
            "did you mean \"seccomp\"?",
        ),
        (
            "[template.x]\nisolation = \"none\"\nrequire = [\"seccomp\"]",
            ":3: template.x.require:",
            "isolation = \"none\"",
        ),
        (
            "[template.x]\nmemroy = \"1GiB\"",
            ":2: template.x.memroy:",
            "did you mean \"memory\"?",
        ),
    ] {
        told(text, place, expected);
    }
}

fn told(text: &str, place: &str, expected: &str) {
    let errors = Config::resolve(&sources(text)).expect_err(text).to_string();
    let line = errors.lines().find(|line| line.contains(&format!("{FILE}{place}")));
    let line = line.unwrap_or_else(|| panic!("{text}\nexpected {place}\n{errors}"));
    assert!(line.contains(expected), "{text}\nexpected {expected}\n{line}");
}

#[test]
fn so_does_every_mistake_about_a_cluster() {
    for (text, place, expected) in [
        ("", ":1: provider:", "is unknown; did you mean"),
        ("namespaces = []", ":3: kubernetes.namespaces:", "at least one"),
        (
            "namespaces = \"default\"",
            ":3: kubernetes.namespaces:",
            "expected a list",
        ),
        ("namespaces = [\"A b\"]", ":3: kubernetes.namespaces:", "lower-case"),
        ("namespaces = [\"a\", \"a\"]", ":3: kubernetes.namespaces:", "twice"),
        (
            "make_pools = \"yes\"",
            ":3: kubernetes.make_pools:",
            "expected true or false",
        ),
        ("trust_domain = \"a/b\"", ":3: kubernetes.trust_domain:", "not \"a/b\""),
        (
            "keys_dir = \"keys\"",
            ":3: kubernetes.keys_dir:",
            "expected an absolute path",
        ),
        (
            "connection = \"tunel\"",
            ":3: kubernetes.connection:",
            "did you mean \"tunnel\"?",
        ),
        (
            "connection = \"gateway\"",
            ":3: kubernetes.connection:",
            "kubernetes.gateway.name must be given",
        ),
        (
            "connection = \"direct\"",
            ":3: kubernetes.connection:",
            "kubernetes.direct.url must be given",
        ),
        (
            "in_cluster = 0",
            ":3: kubernetes.in_cluster:",
            "true, false or \"auto\"",
        ),
        (
            "image_grace = \"none\"",
            ":3: kubernetes.image_grace:",
            "expected a span",
        ),
        (
            "namespace = \"x\"",
            ":3: kubernetes.namespace:",
            "did you mean \"namespaces\"?",
        ),
        (
            "[kubernetes.gateway]\nname = \"x\"",
            ":4: kubernetes.gateway.name:",
            "namespace must be given too",
        ),
        (
            "[kubernetes.gateway]\nlistener = \"x\"",
            ":4: kubernetes.gateway.listener:",
            "without name",
        ),
        (
            "[kubernetes.direct]\nheaders = { a = \"b\" }",
            ":4: kubernetes.direct.headers:",
            "without url",
        ),
        (
            "[kubernetes.direct]\nheaders = { \"a b\" = \"c\" }",
            ":4: kubernetes.direct.headers:",
            "not fit for a header",
        ),
        ("[kubernetes.gate]\nname = \"x\"", ":3: kubernetes.gate:", "unknown key"),
        // What is for sandboxes on this machine only.
        ("[template.x]\npids = 5", ":3: template:", "SandboxTemplates"),
        ("[limits]\nsandboxes = 5", ":4: limits.sandboxes:", "ResourceQuota"),
        (
            "[limits]\nexecs_per_sandbox = 5",
            ":4: limits.execs_per_sandbox:",
            "only for provider = \"local\"",
        ),
    ] {
        let provider = if text.is_empty() { "kubernets" } else { "kubernetes" };
        told(
            &format!("provider = {provider:?}\n[kubernetes]\n{text}"),
            place,
            expected,
        );
    }
    let only_here = "provider = \"kubernetes\"\nmonitor_bin = \"/x\"\n";
    told(only_here, ":2: monitor_bin:", "only for provider = \"local\"");
    let only_there = "[kubernetes]\nnamespaces = [\"a\"]";
    told(only_there, ":1: kubernetes:", "only for provider = \"kubernetes\"");
}

#[test]
fn what_is_for_another_provider_is_a_mistake_as_a_flag_and_odd_in_the_environment() {
    let flags = [("kubernetes-context", "x")];
    let error = Config::resolve(&with(sources(""), &[], &flags))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("flag --kubernetes-context: kubernetes: is only for"),
        "{error}"
    );
    let flags = [("provider", "kubernetes"), ("monitor-bin", "x")];
    let error = Config::resolve(&with(sources(""), &[], &flags))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("flag --monitor-bin: monitor_bin: is only"), "{error}");
    // Those who test have these for other programs too.
    let environment = [
        ("SANDGATE_RUNTIME_BIN", "/x"),
        ("SANDGATE_KUBERNETES_CONTEXT", "x"),
        ("SANDGATE_KUBERNETES_KEYS_DIR", "/keys"),
    ];
    for (provider, odd) in [
        ("kubernetes", &["SANDGATE_RUNTIME_BIN"][..]),
        (
            "local",
            &["SANDGATE_KUBERNETES_CONTEXT", "SANDGATE_KUBERNETES_KEYS_DIR"],
        ),
    ] {
        let config = Config::resolve(&with(sources(""), &environment, &[("provider", provider)])).unwrap();
        assert_eq!(config.warnings.len(), odd.len(), "{:?}", config.warnings);
        for (warning, name) in config.warnings.iter().zip(odd) {
            assert!(warning.starts_with(&format!("environment {name}: ")), "{warning}");
            assert!(warning.contains("is only for provider"), "{warning}");
        }
    }
}

#[test]
fn a_mistake_elsewhere_names_the_variable_or_the_flag() {
    for (environment, flags, expected) in [
        (
            &[("SANDGATE_LISTEN", "0.0.0.0:1")][..],
            &[][..],
            "environment SANDGATE_LISTEN: listen: 0.0.0.0:1 can be reached",
        ),
        (
            &[("SANDGATE_LIMITS_SANDBOXES", "many")],
            &[],
            "environment SANDGATE_LIMITS_SANDBOXES: limits.sandboxes: expected",
        ),
        (
            &[],
            &[("listen", "nonsense")],
            "flag --listen: listen: expected an IP address and a port",
        ),
        (
            &[],
            &[("limits-max-idle", "1x")],
            "flag --limits-max-idle: limits.max_idle: expected a span",
        ),
        (
            &[],
            &[("default-template", "x")],
            "flag --default-template: default_template: there is no template \"x\"",
        ),
    ] {
        let errors = Config::resolve(&with(sources(""), environment, flags))
            .unwrap_err()
            .to_string();
        assert!(errors.starts_with(expected), "{errors}");
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let text = "log = \"loud\"\nquux = 1\n[template.x]\nttl = 5\n[template.y]\nttl = 6";
    let errors = Config::resolve(&sources(text)).unwrap_err();
    assert_eq!(errors.0.len(), 4, "{errors}");
    assert_eq!(errors.to_string().lines().count(), 4);
}

#[test]
fn a_variable_that_is_nearly_ours_is_warned_of() {
    let environment = [
        ("SANDGATE_LISTE", "x"),
        ("SANDGATE_ADDR", "x"),
        ("SANDGATE_TOKEN", "x"),
        ("OTHER", "x"),
    ];
    let config = Config::resolve(&with(sources(""), &environment, &[])).unwrap();
    assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    assert!(config.warnings[0].contains("SANDGATE_LISTE ") && config.warnings[0].contains("SANDGATE_LISTEN?"));
}
