# The parts of the test cluster, each a process in its namespaces: how it is configured, started and stopped.
#
# Read by scripts/cluster, which sets the variables dir, name, here and holder.
# shellcheck shell=bash disable=SC2034,SC2054,SC2154 # used there, commas in arguments, set there

# One node, one address that pods can reach as well: the kubelet refuses one of the loopback. All clusters use the same
# addresses, each in a network namespace of its own.
node_address=10.55.0.1
service_network=10.96.0.0/16 api_service=10.96.0.1
pod_network=10.244.0.0/16
api=https://$node_address:6443
router=http://$node_address:8080

tool() { printf '%s' "$SANDGATE_TOOLS/$1/bin/$2"; }

# === the components ===
# In the order of their start. Each has a function that says its command.
components=(etcd containerd apiserver controller-manager scheduler kubelet kube-proxy controller router)

# What is lost with the machine's power is lost with the cluster anyway.
command_etcd() {
    command=(etcd --name node --data-dir "$dir/etcd" --snapshot-count 100000 --log-level warn --logger zap
        --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379
        --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380
        --initial-cluster node=http://127.0.0.1:2380)
}

command_containerd() { command=(containerd --config "$dir/config/containerd.toml"); }

# Pods reach it by its service address, which kube-proxy leads to the advertised one.
command_apiserver() {
    local pki=$dir/pki
    command=("$(tool kubernetes kube-apiserver)" --etcd-servers http://127.0.0.1:2379
        --bind-address 0.0.0.0 --advertise-address "$node_address" --secure-port 6443
        --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" --client-ca-file "$pki/ca.crt"
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$pki/accounts.pub"
        --service-account-signing-key-file "$pki/accounts.key" --service-cluster-ip-range "$service_network"
        --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged
        --kubelet-client-certificate "$pki/apiserver-kubelet.crt" --kubelet-client-key "$pki/apiserver-kubelet.key"
        --kubelet-certificate-authority "$pki/ca.crt" --kubelet-preferred-address-types InternalIP
        --audit-policy-file "$dir/config/audit.yaml" --audit-log-path "$dir/log/audit.log")
}

command_controller-manager() {
    command=("$(tool kubernetes kube-controller-manager)" --kubeconfig "$dir/config/controller-manager.kubeconfig"
        --use-service-account-credentials --leader-elect=false --bind-address 127.0.0.1 --root-ca-file "$dir/pki/ca.crt"
        --service-account-private-key-file "$dir/pki/accounts.key" --flex-volume-plugin-dir "$dir/kubelet/volume-plugins"
        --kube-api-qps 200 --kube-api-burst 400
        --controllers '*,-node-ipam-controller,-node-route-controller,-service-lb-controller,-cloud-node-lifecycle-controller')
}

command_scheduler() { command=("$(tool kubernetes kube-scheduler)" --config "$dir/config/scheduler.yaml" --bind-address 127.0.0.1); }

command_kubelet() {
    command=("$(tool kubernetes kubelet)" --config "$dir/config/kubelet.yaml" --kubeconfig "$dir/config/kubelet.kubeconfig"
        --root-dir "$dir/kubelet" --cert-dir "$dir/kubelet/pki" --hostname-override node --node-ip "$node_address")
}

command_kube-proxy() { command=("$(tool kubernetes kube-proxy)" --config "$dir/config/kube-proxy.yaml"); }

# Of agent-sandbox: which one is a matter of `scripts/cluster agent-sandbox`.
command_controller() {
    command=("$(tool "$(agent_sandbox)" agent-sandbox-controller)" --kubeconfig "$dir/config/controller.kubeconfig"
        --extensions --leader-elect=false --metrics-bind-address "$node_address:8090" --health-probe-bind-address 127.0.0.1:8091)
}

command_router() {
    command=(env KUBECONFIG="$dir/config/router.kubeconfig" "$(tool agent-sandbox sandbox-router)" --authz-mode allow-all
        --http-bind-address "$node_address:8080" --metrics-bind-address "$node_address:8082"
        --health-probe-bind-address 127.0.0.1:8081 --cache-enabled)
}

# What answers once they work. (containerd answers nobody but its own client.)
declare -A signs=(
    [etcd]=http://127.0.0.1:2379/health
    [apiserver]=/readyz
    [controller-manager]=https://127.0.0.1:10257/healthz
    [scheduler]=https://127.0.0.1:10259/readyz
    [kubelet]=/api/v1/nodes/node#Ready
    [kube-proxy]=http://127.0.0.1:10256/healthz
    [controller]=http://127.0.0.1:8091/readyz
    [router]=http://127.0.0.1:8081/readyz
)

# === their life ===
# inside COMMAND...: runs it among the components. What they need of the environment is nothing.
inside() {
    nsenter --target "$holder" --mount --net --pid -- \
        env -i PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$dir" "$@"
}

# in_network COMMAND...: runs it in the network of the cluster, and as the caller otherwise.
in_network() { nsenter --net="/proc/$holder/ns/net" -- "$@"; }

kube() { in_network env KUBE_API="$api" KUBE_PKI="$dir/pki" python3 "$here/kube.py" "$@"; }

running() {
    local pid
    [ -f "$dir/pid/$1" ] && pid=$(<"$dir/pid/$1") && [ -d "/proc/$pid" ]
}

# start COMPONENT: its process is that in the file pid/COMPONENT, as the machine counts; its output is in log/.
start() {
    local command=() entering child='' tries
    declare -F "command_$1" >/dev/null || die "unknown component: $1 (there are: ${components[*]})"
    ! running "$1" || return 0
    "command_$1"
    setsid nsenter --target "$holder" --mount --net --pid -- \
        env -i PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$dir" "${command[@]}" \
        </dev/null >>"$dir/log/$1.log" 2>&1 &
    entering=$!
    # What enters a namespace of processes does so by a child.
    for ((tries = 0; tries < 100; tries++)); do
        read -r child _ <"/proc/$entering/task/$entering/children" || true
        [ ! "$child" ] || break
        sleep 0.02
    done
    [ "$child" ] || die "$1 did not start: $dir/log/$1.log"
    disown "$entering"
    echo "$child" >"$dir/pid/$1"
}

# stop COMPONENT [SIGNAL]: and waits for its end. What it started goes on (the pods, for containerd and the kubelet).
stop() {
    local pid tries
    declare -F "command_$1" >/dev/null || die "unknown component: $1 (there are: ${components[*]})"
    running "$1" || return 0
    pid=$(<"$dir/pid/$1")
    kill "-${2:-TERM}" "$pid"
    for ((tries = 0; tries < 500; tries++)); do
        [ -d "/proc/$pid" ] || break
        # Some wait for their clients to go.
        [ "$tries" != 250 ] || kill -KILL "$pid" 2>/dev/null || true
        sleep 0.02
    done
    ! running "$1" || die "$1 does not end"
    rm -f "$dir/pid/$1"
}

# ready COMPONENT...: waits until they work, or one has ended.
ready() {
    local each orders=()
    for each in "$@"; do
        [ ! "${signs[$each]:-}" ] || orders+=("$each=$(<"$dir/pid/$each")=${signs[$each]}")
    done
    if kube wait "${orders[@]}"; then return; fi
    for each in "$@"; do
        printf '==> the end of %s\n' "$dir/log/$each.log"
        tail -n 10 "$dir/log/$each.log"
    done >&2
    die "not all of these work: $*"
}

# === their configuration ===
configure() {
    local client
    mkdir -p "$dir"/{config,cni,kubelet/volume-plugins,pki}
    "$(tool node certificates)" "$dir/pki" \
        "apiserver=kube-apiserver,$node_address,$api_service,127.0.0.1,localhost,kubernetes,kubernetes.default,kubernetes.default.svc" \
        apiserver-kubelet=kube-apiserver-kubelet-client/system:masters \
        "kubelet-server=system:node:node/system:nodes,$node_address,node" \
        kubelet=system:node:node/system:nodes \
        controller-manager=system:kube-controller-manager scheduler=system:kube-scheduler kube-proxy=system:kube-proxy \
        controller=agent-sandbox-controller/system:masters router=sandbox-router/system:masters \
        admin=admin/system:masters
    for client in kubelet controller-manager scheduler kube-proxy controller router; do
        kubeconfig "$client" >"$dir/config/$client.kubeconfig"
    done
    kubeconfig admin >"$dir/kubeconfig"
    config_audit >"$dir/config/audit.yaml"
    config_containerd >"$dir/config/containerd.toml"
    config_scheduler >"$dir/config/scheduler.yaml"
    config_kubelet >"$dir/config/kubelet.yaml"
    config_kube_proxy >"$dir/config/kube-proxy.yaml"
    config_network >"$dir/cni/10-pods.conflist"
}

kubeconfig() {
    cat <<END
apiVersion: v1
kind: Config
clusters:
  - name: test
    cluster:
      server: $api
      certificate-authority-data: $(base64 -w 0 "$dir/pki/ca.crt")
users:
  - name: $1
    user:
      client-certificate-data: $(base64 -w 0 "$dir/pki/$1.crt")
      client-key-data: $(base64 -w 0 "$dir/pki/$1.key")
contexts:
  - name: test
    context:
      cluster: test
      user: $1
current-context: test
END
}

# Tests count what their servers ask for. What the cluster asks itself would drown that.
config_audit() {
    cat <<END
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    userGroups: [system:nodes, system:serviceaccounts:kube-system]
  - level: None
    users:
      - agent-sandbox-controller
      - sandbox-router
      - system:apiserver
      - system:kube-controller-manager
      - system:kube-proxy
      - system:kube-scheduler
  - level: Metadata
END
}

# Without CAP_SYS_RESOURCE no process may make itself less likely to be killed for memory, as pause containers want.
config_containerd() {
    cat <<END
version = 2
root = "$dir/containerd"
state = "/run/containerd"
disabled_plugins = [
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/sandgate/pause:test"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "$dir/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
END
}

config_scheduler() {
    cat <<END
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: $dir/config/scheduler.kubeconfig
  qps: 200
  burst: 400
leaderElection:
  leaderElect: false
END
}

# It evicts nothing for a disk that is full with other things, and limits nothing: nothing is the node's own.
config_kubelet() {
    cat <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  x509:
    clientCAFile: $dir/pki/ca.crt
  webhook:
    enabled: true
authorization:
  mode: Webhook
tlsCertFile: $dir/pki/kubelet-server.crt
tlsPrivateKeyFile: $dir/pki/kubelet-server.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$name
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
resolvConf: ""
volumePluginDir: $dir/kubelet/volume-plugins
maxPods: 250
podPidsLimit: 4096
kubeAPIQPS: 200
kubeAPIBurst: 400
eventRecordQPS: 0
imageMinimumGCAge: 24h
imageGCHighThresholdPercent: 100
evictionHard:
  memory.available: 100Mi
  nodefs.available: 0%
  nodefs.inodesFree: 0%
  imagefs.available: 0%
  imagefs.inodesFree: 0%
END
}

# The limits of connection tracking are the machine's.
config_kube_proxy() {
    cat <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection:
  kubeconfig: $dir/config/kube-proxy.kubeconfig
mode: iptables
hostnameOverride: node
bindAddress: $node_address
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clusterCIDR: $pod_network
conntrack:
  maxPerCore: 0
  min: 0
  tcpEstablishedTimeout: 0s
  tcpCloseWaitTimeout: 0s
iptables:
  minSyncPeriod: 0s
END
}

# A wire from each pod to the node: what goes from pod to pod passes the node's rules, as with a bridge it would not.
config_network() {
    cat <<END
{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "dataDir": "$dir/addresses",
        "ranges": [[{"subnet": "$pod_network"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
END
}
