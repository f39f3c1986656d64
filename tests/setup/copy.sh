#!/usr/bin/env bash
# A copy of this machine to change at will: the same files, every change in memory, all of it gone with this process.
# It wants mount, pid and ipc namespaces of its own, says `ready PID` once commands may enter, and ends with its input.
#
# Usage: copy.sh SCRATCH SHARED DIR...
#   SCRATCH   an empty directory
#   SHARED    a directory that is the machine's own in the copy too
#   DIR       directories that must be in the copy, wherever they are mounted from
set -euo pipefail
scratch=$1 shared=$2
shift 2

mount -t tmpfs -o mode=0755 tmpfs "$scratch"
root=$scratch/root
mkdir "$root"

# layer MOUNT: what lies on it, with a layer for changes. Directories of the machine can be renamed in it.
count=0
layer() {
    local upper=$scratch/layer$((count += 1))
    mkdir "$upper" "$upper.work"
    mount -t overlay -o "lowerdir=$1,upperdir=$upper,workdir=$upper.work,redirect_dir=on" overlay "$root$1"
}

layer /
while read -r mounted; do
    [ "$mounted" = / ] || layer "$mounted"
done < <(for dir in /usr /etc /var "$@"; do findmnt -n -o TARGET -T "$dir"; done | sort -u)

mkdir -p "$shared"
mkdir -p "$root$shared"
mount --bind "$shared" "$root$shared"

# What packages start or stop as they come and go must not be the machine's: no socket of its services is in reach.
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"

# An index of manuals takes longer than most packages.
rm -f "$root/var/lib/man-db/auto-update"

# Often mounts or links into /run.
for file in /etc/resolv.conf /etc/hosts; do
    rm -f "$root$file"
    cp -L "$file" "$root$file"
done

# The machine's number of this process: /proc is still the machine's.
read -r pid _ </proc/self/stat
exec chroot "$root" sh -c "echo ready $pid; cat >/dev/null"
