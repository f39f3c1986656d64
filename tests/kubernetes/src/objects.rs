//! Templates and pools, as an operator would write them.

use serde_json::{Value, json};

/// Where our runtime listens in a pod.
pub const RUNTIME_PORT: u16 = 8888;
/// The version of the objects, unless they are made for another.
const VERSION: &str = "extensions.agents.x-k8s.io/v1beta1";
/// Plural of pools.
pub const POOL: &str = "sandboxwarmpools";

/// The versions of agent-sandbox's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Of agent-sandbox 0.4.
    V1alpha1,
    /// Of agent-sandbox 1.0.
    V1beta1,
}

impl Version {
    /// As in `apiVersion`, behind the group.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1alpha1 => "v1alpha1",
            Self::V1beta1 => "v1beta1",
        }
    }

    /// A template or a pool as this version has it.
    #[must_use]
    pub fn object(self, mut object: Value) -> Value {
        if self == Self::V1alpha1 {
            object["apiVersion"] = VERSION.replace("v1beta1", "v1alpha1").into();
            let spec = object["spec"].as_object_mut().unwrap();
            spec.remove("volumeClaimTemplatesPolicy");
        }
        object
    }
}

/// A template whose pods have our runtime and nothing that survives them.
#[must_use]
pub fn plain_template(name: &str) -> Value {
    let mut template = runtime_template(name, None);
    template["spec"]["volumeClaimTemplates"] = json!([]);
    let volumes = &mut template["spec"]["podTemplate"]["spec"]["volumes"];
    volumes
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "data", "emptyDir": {}}));
    for mount in template["spec"]["podTemplate"]["spec"]["containers"][0]["volumeMounts"]
        .as_array_mut()
        .unwrap()
    {
        mount.as_object_mut().unwrap().remove("subPath");
    }
    let mounts = &mut template["spec"]["podTemplate"]["spec"]["containers"][0]["volumeMounts"];
    mounts
        .as_array_mut()
        .unwrap()
        .retain(|mount| mount["mountPath"] != "/workspace");
    template
}

/// A template whose pods have our runtime, with its records and /workspace on a volume that survives the pod.
#[must_use]
pub fn runtime_template(name: &str, storage_class: Option<&str>) -> Value {
    let downward = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mount = |path: &str, sub: &str| json!({"name": "data", "mountPath": path, "subPath": sub});
    json!({
        "apiVersion": VERSION,
        "kind": "SandboxTemplate",
        "metadata": {"name": name},
        "spec": {
            "volumeClaimTemplatesPolicy": "Allowed",
            "podTemplate": {"spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 10,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "sandbox",
                    "image": "sandgate/sandbox:test",
                    "imagePullPolicy": "Never",
                    "command": [
                        "/usr/local/bin/sandgate-runtime", "--listen", format!("0.0.0.0:{RUNTIME_PORT}"),
                        "--state-dir", "/var/lib/sandgate/state", "--keys", "/etc/sandgate/keys",
                        "--audience", "test/$(POD_NAMESPACE)/$(POD_NAME)", "--pod-uid", "$(POD_UID)",
                        "--termination-log", "/dev/termination-log",
                    ],
                    "env": [
                        downward("POD_NAME", "metadata.name"),
                        downward("POD_NAMESPACE", "metadata.namespace"),
                        downward("POD_UID", "metadata.uid"),
                    ],
                    "ports": [{"containerPort": RUNTIME_PORT}],
                    "readinessProbe": {"httpGet": {"path": "/healthz", "port": RUNTIME_PORT}, "periodSeconds": 1},
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "keys", "mountPath": "/etc/sandgate/keys", "readOnly": true},
                        mount("/workspace", "workspace"),
                        mount("/var/lib/sandgate", "state"),
                    ],
                }],
                "volumes": [{"name": "keys", "configMap": {"name": "sandgate-keys"}}],
            }},
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                    "storageClassName": storage_class,
                },
            }],
        },
    })
}

/// A template named for a driver, whose pods have what it speaks to, with /workspace on a volume that survives the pod.
pub(crate) fn driver_template(driver: &str, storage_class: Option<&str>) -> Value {
    let health = |path: &str, port: u16| json!({"httpGet": {"path": path, "port": port}, "periodSeconds": 1});
    let (image, probe) = match driver {
        "sandboxd" => ("sandgate/sandboxd:test", health("/v1/health", 8080)),
        "python-runtime" => ("sandgate/python-runtime:test", health("/", RUNTIME_PORT)),
        "exec" => ("sandgate/busybox:test", Value::Null),
        other => panic!("no image for {other}"),
    };
    let mut template = runtime_template(driver, storage_class);
    template["metadata"]["annotations"] = json!({"sandgate.dev/driver": driver});
    template["spec"]["envVarsInjectionPolicy"] = "Allowed".into();
    let pod = &mut template["spec"]["podTemplate"]["spec"];
    // None of them ends when it is told to.
    pod["terminationGracePeriodSeconds"] = 1.into();
    pod["volumes"] = json!([]);
    let container = &mut pod["containers"][0];
    for ours in ["command", "ports"] {
        container.as_object_mut().unwrap().remove(ours);
    }
    container["image"] = image.into();
    container["readinessProbe"] = probe;
    container["env"] = json!([{"name": "SANDBOX_BASE_DIR", "value": "/workspace"}]);
    let mounts = container["volumeMounts"].as_array_mut().unwrap();
    mounts.retain(|mount| mount["mountPath"] == "/workspace");
    template
}

/// A pool of sandboxes of a template.
#[must_use]
pub fn pool(name: &str, template: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": VERSION,
        "kind": "SandboxWarmPool",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": template}},
    })
}
