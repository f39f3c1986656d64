# The images that the test cluster has: there is no registry, so each is put together here and given to containerd.
#
# An image is a function below and a name in the list. Read by scripts/cluster, as components.sh is.
# shellcheck shell=bash disable=SC2034,SC2154 # used there, set there

# These every cluster has. The server's and the command line's are made for who asks for them: `scripts/cluster image
# server cli`.
images=(pause busybox sandboxd python-runtime sandbox runtime)

# What others are made upon, large and seldom changed: it is unpacked once, and a new cluster gets links to its files.
image_debian() { image sandgate/debian:test --root "$(debian)"; }

# The pods' own: it holds their namespaces.
image_pause() { image sandgate/pause:test --file "$(tool node pause)=/pause" --entrypoint /pause; }

# A shell and nothing else.
image_busybox() {
    local applet links=()
    for applet in $(/bin/busybox --list); do
        [ "$applet" = busybox ] || links+=(--link "/bin/$applet=busybox")
    done
    image sandgate/busybox:test --file /bin/busybox=/bin/busybox "${links[@]}" --dir /workspace=1000 --dir /tmp=1000 \
        --text "$(users)" --cwd /workspace --entrypoint /bin/sleep 1000000
}

# What agent-sandbox itself runs in a sandbox.
image_sandboxd() {
    image sandgate/sandboxd:test --upon "$(debian)" --file "$(tool agent-sandbox sandboxd)=/usr/local/bin/sandboxd" \
        --user 1000 --cwd /workspace --entrypoint /usr/local/bin/sandboxd
}

# agent-sandbox's example of a runtime, which its SDK speaks to.
image_python-runtime() {
    image sandgate/python-runtime:test --upon "$(debian)" --root "$(python_runtime)" --user 1000 --cwd /app \
        --entrypoint /usr/bin/python3 -m uvicorn main:app --host 0.0.0.0 --port 8888
}

# What Sandgate runs in one. Its runtime is a layer of its own: the rest is large and seldom changes.
image_sandbox() {
    image sandgate/sandbox:test --upon "$(debian)" --file "$SANDGATE_RUNTIME_BIN=/usr/local/bin/sandgate-runtime" \
        --user 1000 --cwd /workspace --entrypoint /usr/local/bin/sandgate-runtime
}

# What an init container puts into other images.
image_runtime() {
    image sandgate/runtime:test --file "$SANDGATE_RUNTIME_BIN=/sandgate-runtime" --user 65532 --entrypoint /sandgate-runtime
}

# As deploy/containers makes it.
image_server() {
    local program=${SANDGATE_SERVER_BIN:-$CARGO_TARGET_DIR/debug/sandgate-server}
    image sandgate/server:test --root "$(root_of "$program")" --user 65532 --entrypoint /usr/bin/sandgate-server
}

# The command line, for a caller in the cluster.
image_cli() {
    local program=${SANDGATE_CLI_BIN:-$CARGO_TARGET_DIR/debug/sandgate}
    image sandgate/cli:test --root "$(root_of "$program")" --user 65532 --entrypoint /usr/bin/sandgate
}

# root_of PROGRAM: a layer with it and its libraries.
root_of() {
    local root
    root=$dir/images/$(basename "$1")
    rm -rf "$root" "$root.tar"
    "$here/../../deploy/containers/server-root" "$1" "$root"
    tar --create --file "$root.tar" --directory "$root" --owner 0 --group 0 --sort=name .
    rm -rf "$root"
    echo "$root.tar"
}

# === their making ===
# image NAME OPTION...: as images/image.py takes them. They are given all at once: what they share is read once.
orders=()
image() { orders+=(${orders[@]:+--next} "$@"); }

give_images() {
    local each
    orders=()
    for each in "$@"; do
        declare -F "image_$each" >/dev/null || die "unknown image: $each (there are: ${images[*]})"
        "image_$each"
    done
    python3 "$here/images/image.py" "${orders[@]}" |
        inside ctr --namespace k8s.io images import --snapshotter overlayfs - >/dev/null
}

# The directory of a containerd that has the Debian image. Nothing writes to an unpacked layer, so that its files can be
# shared with a cluster, where both are on one filesystem; those where containerd keeps what it knows are the cluster's own.
unpacked() {
    local kept
    kept=$SANDGATE_BUILDS/images/$(basename "$(debian)" .tar).containerd
    if [ -d "$kept" ] && cp --archive --link "$kept" "$dir/containerd" 2>/dev/null; then
        own_files "$dir/containerd"
        return
    fi
    say "unpacking the sandbox image"
    rm -rf "$dir/containerd"
    start containerd
    until_containerd
    give_images debian
    stop containerd
    if [ "$(stat -c %d "$dir")" = "$(stat -c %d "$SANDGATE_BUILDS")" ]; then
        cp --archive --link "$dir/containerd" "$dir/containerd.kept"
        own_files "$dir/containerd.kept"
        # Another may have been quicker.
        mv -T "$dir/containerd.kept" "$kept" 2>/dev/null || true
    fi
}

own_files() {
    local file
    find "$1" -name '*.db' -path '*io.containerd.*' -not -path '*/snapshots/*' | while read -r file; do
        cp --preserve "$file" "$file.own"
        mv "$file.own" "$file"
    done
}

until_containerd() {
    local tries
    for ((tries = 0; tries < 300; tries++)); do
        ! inside ctr version >/dev/null 2>&1 || return 0
        running containerd || break
        sleep 0.1
    done
    tail -n 20 "$dir/log/containerd.log" >&2
    die "containerd does not work; this was the end of $dir/log/containerd.log"
}

users() { printf '/etc/passwd=root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::/workspace:/bin/sh\n'; }

# The root of a Debian, made once for what makes it.
debian() {
    local file
    file=$SANDGATE_BUILDS/images/debian-$("$here/images/debian" --name).tar
    if [ ! -f "$file" ]; then
        say "making the sandbox image from Debian packages, which takes minutes the first time"
        "$here/images/debian" "$file" >&2
    fi
    echo "$file"
}

# A layer with the python-runtime of the pinned agent-sandbox and those of its pinned packages that it serves with: it has
# others for what runs in it, which want a newer Python than Debian may have.
python_runtime() {
    local source file python new
    source=$(cd "$here/agent-sandbox" && PATH=$PATH:/usr/local/go/bin GOFLAGS=-mod=readonly GOTOOLCHAIN=local \
        sh -eu -c 'go mod download "$1" >&2 && go list -m -f "{{.Dir}}" "$1"' sh sigs.k8s.io/agent-sandbox)
    source=$source/examples/python-runtime-sandbox
    file=$( (declare -f python_runtime && debian && cat "$source"/{main.py,requirements.txt}) | sha256sum | cut -c -12)
    file=$SANDGATE_BUILDS/images/python-runtime-$file.tar
    if [ ! -f "$file" ]; then
        say "making the image of the python-runtime"
        new=$file.$$
        mkdir -p "$new/root/app"
        cp --no-preserve=mode "$source/main.py" "$new/root/app"
        sed '/--hash/d; s/ \\$//' "$source/requirements.txt" >"$new/pins"
        python=$(tar --list --file "$(debian)" | sed -n 's|.*/usr/bin/python\(3\.[0-9]*\)$|\1|p')
        python3 -m venv "$new/venv"
        # For the Python that is in the image, not for that of this machine.
        "$new/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --python-version "$python" \
            --platform "manylinux2014_$(uname -m)" --no-compile --target "$new/root/app" \
            --constraint "$new/pins" fastapi uvicorn python-multipart >&2
        tar --create --file "$new/tar" --directory "$new/root" --owner 1000 --group 1000 --sort=name app
        mv "$new/tar" "$file"
        rm -rf "$new"
    fi
    echo "$file"
}
