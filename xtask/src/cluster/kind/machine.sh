#!/bin/sh
# A machine for Docker as a set of namespaces. Its files are a layer over a Debian root file system; nothing of the host changes.
#
#   machine.sh start|stop HERE CGROUP
#     HERE     where all of it lies: the same path inside and outside, so that the socket is reached from both
#     CGROUP   name of the control group to be in, made below every hierarchy
#
# Stage `start` makes the control group and goes on as the parent of stage `inside`, which becomes the first process of the
# machine. What ends either of them ends the machine and every container.
set -eu
stage=$1 here=$2 cgroup=$3
. "$here/parts"
. "$here/groups.sh"

# Where the control group has to be made. A hierarchy of version 2 may lie beside those of version 1, without controllers: who
# stays in its root has the systemd of every node write there.
parents() {
    if [ -z "$(hierarchies)" ]; then
        echo /sys/fs/cgroup
        return
    fi
    hierarchies | cut -d ' ' -f 1
    awk '$3 == "cgroup2" && $2 ~ "^/sys/fs/cgroup/" {print $2}' /proc/mounts
}

start() {
    mkdir -p "$here/upper" "$here/work" "$here/root" "$here/docker"
    for parent in $(parents); do
        mkdir -p "$parent/$cgroup"
        # A new cpuset is empty, and nothing can join it.
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$parent/$cgroup/$file" ] || cat "$parent/$file" > "$parent/$cgroup/$file" || true
        done
        echo $$ > "$parent/$cgroup/cgroup.procs"
    done
    exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        unshare --mount --net --pid --fork --kill-child --uts --ipc --cgroup \
        sh "$here/machine.sh" inside "$here" "$cgroup"
}

# Controllers of version 2 are for groups below one that has no processes of its own.
hand_controllers_down() { # ROOT
    groups=$1/sys/fs/cgroup
    mkdir "$groups/docker-itself"
    while read -r process; do
        echo "$process" > "$groups/docker-itself/cgroup.procs" || true
    done < "$groups/cgroup.procs"
    sed 's/[^ ]*/+&/g' "$groups/cgroup.controllers" > "$groups/cgroup.subtree_control"
}

mount_everything() { # ROOT
    mount --make-rprivate /
    mount -t overlay overlay -o "lowerdir=$docker,upperdir=$here/upper,workdir=$here/work" "$1"
    mkdir -p "$1/.old" "$1/var/lib/docker" "$1/lib/modules" "$1$here"
    mount -t proc proc "$1/proc"
    mount -t sysfs sysfs "$1/sys"
    mount_control_groups "$1"
    [ -n "$(hierarchies)" ] || hand_controllers_down "$1"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/run"
    mount -t tmpfs tmpfs "$1/tmp"
    mkdir -p "$1$here"
    mount --bind "$here" "$1$here"
    # The layers of containers cannot lie on a layer.
    mount --bind "$here/docker" "$1/var/lib/docker"
    install -m 755 "$here/runc.sh" "$1/usr/local/sbin/runc-without-sys-resource"
}

inside() {
    # Our number as everybody outside knows it, while the outer /proc is still there: what reads it is our child.
    awk '{print $4}' /proc/self/stat > "$here/process.new"
    mv "$here/process.new" "$here/process"
    mount_everything "$here/root"
    cd "$here/root"
    pivot_root . .old
    cd /
    umount -l /.old
    hostname "$cgroup"
    echo "127.0.0.1 localhost $cgroup" > /etc/hosts
    # There is nobody to ask, but Docker's own name server wants somebody.
    echo nameserver 127.0.0.1 > /etc/resolv.conf
    ip link set lo up
    echo 1 > /proc/sys/net/ipv4/ip_forward
    dockerd --host "unix://$here/docker.sock" --storage-driver overlay2 --oom-score-adjust 0 \
        --add-runtime without=/usr/local/sbin/runc-without-sys-resource --default-runtime without > "$here/dockerd.log" 2>&1 < /dev/null &
    # What runs in the background becomes its child.
    exec tini -s -- sleep infinity
}

# Whether a number is that of the machine: it may have been given to somebody else since.
is_ours() { grep -q "/$cgroup" "/proc/$1/cgroup" 2> /dev/null; }

stop() {
    process=$(cat "$here/process" 2> /dev/null || true)
    if [ -n "$process" ] && is_ours "$process"; then
        kill -9 "$process"
        while is_ours "$process"; do sleep 0.1; done
    fi
    for parent in $(parents); do
        tries=100
        while [ -d "$parent/$cgroup" ]; do
            find "$parent/$cgroup" -depth -type d -exec rmdir {} + 2> /dev/null || sleep 0.1
            tries=$((tries - 1))
            [ $tries -gt 0 ] || { echo "something is left in $parent/$cgroup" >&2; exit 1; }
        done
    done
}

"$stage"
