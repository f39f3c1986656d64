//! The chart's roles are enough, and nothing in them is too much: with all of it everything works, and with any verb taken
//! away something fails, because the API server refused exactly that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::{env, fmt, fs, time::Duration};

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
    rbac::v1::{PolicyRule, Role, RoleBinding},
};
use kube::{Api, ResourceExt as _, api::PostParams, config::Kubeconfig};
use sandgate::{Client, Result, Sandbox, v1};
use sandgate_kubernetes_tests::{Mode, Space, plain_template, rendered};
use sandgate_tests::{
    conformance::{new_name, sh},
    server::{Server, ServerOptions, server_binary},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time;

/// Asked for by versions of Kubernetes that are newer than our cluster: a right to open such a connection with GET, which
/// it has to be over WebSockets, is there no longer enough.
const NOT_YET: &[(&str, &str)] = &[("pods/portforward", "create"), ("pods/exec", "create")];
/// What does without a right may wait for it for ever. This long is more than each step takes.
const PATIENCE: Duration = Duration::from_secs(25);
/// How many rights are tried at once.
const AT_ONCE: usize = 6;
const ACCOUNT: &str = "server";

/// A verb on a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Right {
    group: String,
    resource: String,
    verb: String,
}

/// A namespace with a server whose account has roles of the chart.
struct Stage {
    space: Space,
    dir: TempDir,
}

// === impl Right ===

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.verb, self.resource)
    }
}

impl Right {
    /// All that some rules permit.
    fn of(rules: &[PolicyRule]) -> Vec<Self> {
        let mut rights = Vec::new();
        for rule in rules {
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    rights.extend(rule.verbs.iter().map(|verb| Self {
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                    }));
                }
            }
        }
        rights
    }

    /// The rules without it.
    fn taken_from(&self, rules: &mut [PolicyRule]) {
        for rule in rules {
            let is_ours = |list: &Option<Vec<String>>, ours: &String| list.iter().flatten().any(|each| each == ours);
            if is_ours(&rule.api_groups, &self.group) && is_ours(&rule.resources, &self.resource) {
                rule.verbs.retain(|verb| *verb != self.verb);
            }
        }
    }

    /// Whether the API server has refused it to the account of a namespace.
    fn was_refused(&self, namespace: &str) -> bool {
        let log =
            env::var_os("SANDGATE_TEST_AUDIT_LOG").expect("SANDGATE_TEST_AUDIT_LOG names the API server's audit log");
        let log = fs::read_to_string(log).unwrap();
        let user = format!("system:serviceaccount:{namespace}:{ACCOUNT}");
        // The last line may be half there.
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut refused = entries
            .filter(|entry| entry["user"]["username"] == user.as_str() && entry["responseStatus"]["code"] == 403);
        refused.any(|entry| {
            let object = &entry["objectRef"];
            let resource = match object["subresource"].as_str() {
                Some(sub) => format!("{}/{sub}", object["resource"].as_str().unwrap_or_default()),
                None => object["resource"].as_str().unwrap_or_default().to_owned(),
            };
            entry["verb"] == self.verb.as_str() && resource == self.resource
        })
    }
}

// === impl Stage ===

impl Stage {
    async fn new(without: Option<&Right>) -> Self {
        let space = Space::new().await;
        let dir = TempDir::new().unwrap();
        for mut role in chart_roles(&space, &dir).await {
            if let Some(right) = without {
                right.taken_from(role.rules.as_mut().unwrap());
            }
            bind(&space, role).await;
        }
        let stage = Self { space, dir };
        stage.write_kubeconfig().await;
        stage
    }

    /// The admin's, with another user: the account that has the roles.
    async fn write_kubeconfig(&self) {
        let client = self.space.cluster.client.clone();
        let accounts: Api<ServiceAccount> = Api::namespaced(client, &self.space.namespace);
        let account = serde_json::from_value(json!({"metadata": {"name": ACCOUNT}})).unwrap();
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let request = TokenRequest {
            spec: TokenRequestSpec::default(),
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(ACCOUNT, &PostParams::default(), &request)
            .await;
        let token = answer.unwrap().status.unwrap().token;
        let admin = Kubeconfig::read_from(&self.space.cluster.kubeconfig).unwrap();
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": admin.clusters,
            "users": [{"name": ACCOUNT, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": admin.clusters[0].name, "user": ACCOUNT}}],
            "current-context": "test",
        });
        fs::write(self.kubeconfig(), kubeconfig.to_string()).unwrap();
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        self.dir.path().join("kubeconfig")
    }

    fn config(&self) -> String {
        let admin = format!("{:?}", self.space.cluster.kubeconfig);
        let config = self.space.config(Mode::InCluster);
        let gateway = format!(
            "[kubernetes.gateway]\nname = \"sandgate\"\nnamespace = {:?}\n",
            self.space.namespace
        );
        config.replace(&admin, &format!("{:?}", self.kubeconfig())) + &gateway
    }

    async fn server(&self) -> Server {
        Server::start_with(ServerOptions {
            config: self.config(),
            // It would warn all the time.
            args: vec!["--log".to_owned(), "error".to_owned()],
            ..ServerOptions::default()
        })
        .await
    }

    /// Whether a server gets as far as serving: it waits for its first lists for half a minute, and ends.
    async fn starts(&self) -> bool {
        let config = self.dir.path().join("server.toml");
        fs::write(&config, format!("listen = []\n{}", self.config())).unwrap();
        let mut server = tokio::process::Command::new(server_binary());
        server
            .arg("--config")
            .arg(&config)
            .arg("--state-dir")
            .arg(self.dir.path().join("state"));
        server.env("SANDGATE_LOG", "error").kill_on_drop(true);
        let ended = time::timeout(PATIENCE * 2, server.output()).await;
        let Ok(ended) = ended else { return true };
        let said = String::from_utf8_lossy(&ended.as_ref().unwrap().stderr).into_owned();
        assert!(
            said.contains("does the server's role permit list and watch there?"),
            "{said}"
        );
        false
    }

    /// What needs a right, as a caller sees it.
    async fn step(&self, client: &Client, right: &Right) -> Result<()> {
        match (right.resource.as_str(), right.verb.as_str()) {
            ("sandboxclaims", "get") => self.find_anothers(client).await,
            ("sandboxclaims" | "pods", _) => self.cold(client).await,
            ("sandboxes", "patch") => self.sleep(client).await,
            ("sandboxtemplates", _) => self.later_template(client).await,
            ("sandboxwarmpools", "create") => self.without_a_pool(client).await,
            ("sandboxwarmpools", _) => self.later_pool(client).await,
            ("pods/portforward", _) => self.by(client, v1::ConnectionMode::Tunnel).await,
            ("gateways", _) => self.by(client, v1::ConnectionMode::Gateway).await,
            ("pods/exec", _) => self.with_a_shell(client).await,
            _ => panic!("no step needs {right}"),
        }
    }

    /// Made, used, changed, listed, removed.
    async fn cold(&self, client: &Client) -> Result<()> {
        let created = client.create().name(new_name()).send().await?;
        sh(&created.sandbox, "true").await;
        created
            .sandbox
            .set_labels([("a".to_owned(), "b".to_owned())].into())
            .await?;
        assert_eq!(client.list("a=b").await?.len(), 1);
        created.sandbox.delete().await.map(drop)
    }

    /// A claim that is there and not ours is told from one that is.
    async fn find_anothers(&self, client: &Client) -> Result<()> {
        let name = new_name();
        let claim = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": name},
            "spec": {"warmPoolRef": {"name": "none"}},
        });
        self.space
            .cluster
            .create(&self.space.namespace, "sandboxclaims", claim)
            .await;
        let refused = client.create().name(&name).send().await.unwrap_err();
        self.space
            .claims()
            .delete(&name, &kube::api::DeleteParams::default())
            .await
            .unwrap();
        match refused.reason() {
            Some(v1::ErrorReason::SandboxAlreadyExists) => Ok(()),
            _ => Err(refused),
        }
    }

    async fn sleep(&self, client: &Client) -> Result<()> {
        let created = client.create().name(new_name()).send().await?;
        created.sandbox.suspend(None).await?;
        created.sandbox.resume().await?;
        created.sandbox.delete().await.map(drop)
    }

    /// From a template that was made while the server ran.
    async fn later_template(&self, client: &Client) -> Result<()> {
        let name = new_name();
        self.space.create_template(plain_template(&name)).await;
        loop {
            match client.create().name(new_name()).template(&name).send().await {
                Ok(created) => return created.sandbox.delete().await.map(drop),
                Err(error) if error.reason() == Some(v1::ErrorReason::TemplateNotFound) => {
                    time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// From a pool that was made while the server ran.
    async fn later_pool(&self, client: &Client) -> Result<()> {
        let name = new_name();
        self.space.create_pool(&name, "plain", 1).await;
        loop {
            match client.create().name(new_name()).warm_pool(&name).send().await {
                Ok(created) => return created.sandbox.delete().await.map(drop),
                Err(error) if error.reason() == Some(v1::ErrorReason::InvalidArgument) => {
                    time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// From a template that has no pool.
    async fn without_a_pool(&self, client: &Client) -> Result<()> {
        let created = client.create().name(new_name()).template("other").send().await?;
        created.sandbox.delete().await.map(drop)
    }

    async fn by(&self, client: &Client, mode: v1::ConnectionMode) -> Result<()> {
        if mode == v1::ConnectionMode::Gateway {
            self.space.make_gateway().await;
        }
        let created = client.create().name(new_name()).connection_mode(mode).send().await?;
        self.used_by(&created.sandbox, mode).await
    }

    /// In an image that has only a shell.
    async fn with_a_shell(&self, client: &Client) -> Result<()> {
        let mode = v1::ConnectionMode::Tunnel;
        let wanted = client.create().name(new_name()).template("exec").connection_mode(mode);
        let created = wanted.send().await?;
        self.used_by(&created.sandbox, mode).await
    }

    async fn used_by(&self, sandbox: &Sandbox, mode: v1::ConnectionMode) -> Result<()> {
        assert_eq!(sh(sandbox, "echo hello").await, "hello\n");
        assert_eq!(sandbox.get().await?.connection.unwrap().mode(), mode);
        sandbox.delete().await.map(drop)
    }

    /// With what a failed step has left.
    async fn close(self) {
        let all = kube::api::ListParams::default();
        let delete = kube::api::DeleteParams::default();
        self.space.claims().delete_collection(&delete, &all).await.unwrap();
        self.space.close().await;
    }
}

/// The roles of the chart, for a server that may do everything that it can.
async fn chart_roles(space: &Space, dir: &TempDir) -> Vec<Role> {
    let values = dir.path().join("values.yaml");
    let everything = json!({
        "rbac": {"portForward": true, "exec": true},
        "gateway": {"name": "sandgate", "namespace": space.namespace},
    });
    fs::write(&values, everything.to_string()).unwrap();
    let objects = rendered(&space.cluster, &values).await.into_iter();
    let roles = objects.filter(|object| object.types.as_ref().unwrap().kind == "Role");
    let roles: Vec<Role> = roles.map(|role| role.try_parse().unwrap()).collect();
    assert_eq!(roles.len(), 2, "of sandboxes and of the Gateway");
    roles
}

/// Gives a role to the server's account.
async fn bind(space: &Space, mut role: Role) {
    role.metadata.namespace = None;
    role.rules.as_mut().unwrap().retain(|rule| !rule.verbs.is_empty());
    let name = role.name_any();
    let client = || space.cluster.client.clone();
    let roles: Api<Role> = Api::namespaced(client(), &space.namespace);
    roles.create(&PostParams::default(), &role).await.unwrap();
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": space.namespace}],
    });
    let bindings: Api<RoleBinding> = Api::namespaced(client(), &space.namespace);
    let binding = serde_json::from_value(binding).unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
}

async fn rights() -> Vec<Right> {
    let (space, dir) = (Space::new().await, TempDir::new().unwrap());
    let roles = chart_roles(&space, &dir).await;
    space.close().await;
    roles
        .iter()
        .flat_map(|role| Right::of(role.rules.as_ref().unwrap()))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_roles_of_the_chart_are_enough() {
    let stage = Stage::new(None).await;
    stage.space.create_driver_template("exec").await;
    let server = stage.server().await;
    let client = server.client().await;
    for right in rights().await {
        stage
            .step(&client, &right)
            .await
            .unwrap_or_else(|error| panic!("{right}: {error}"));
    }
    stage.close().await;
}

/// Takes a right away and sees what becomes of it.
async fn without(right: &Right) {
    let stage = Stage::new(Some(right)).await;
    let namespace = stage.space.namespace.clone();
    if right.verb == "list" && right.resource != "gateways" {
        assert!(!stage.starts().await, "the server starts without {right}");
    } else {
        stage.space.create_driver_template("exec").await;
        let server = stage.server().await;
        let client = server.client().await;
        let step = time::timeout(PATIENCE, stage.step(&client, right)).await;
        assert!(!matches!(step, Ok(Ok(()))), "nothing fails without {right}");
    }
    assert!(right.was_refused(&namespace), "nobody asked for {right}");
    stage.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_in_the_roles_is_too_much() {
    let mut rights = rights().await;
    let is_later = |right: &Right| NOT_YET.contains(&(right.resource.as_str(), right.verb.as_str()));
    assert_eq!(
        rights.iter().filter(|right| is_later(right)).count(),
        NOT_YET.len(),
        "{rights:?}"
    );
    rights.retain(|right| !is_later(right));
    assert!(rights.len() > 15, "{rights:?}");
    let tried = stream::iter(&rights).map(without).buffer_unordered(AT_ONCE);
    tried.collect::<Vec<()>>().await;
}
