#!/bin/bash
# First program of a node: makes the container ready for systemd, which takes its place.
set -eu

# Whether control groups are of version 1.
is_v1() { [ ! -e /sys/fs/cgroup/cgroup.controllers ]; }

# A slice of kubelet's own in every hierarchy. systemd removes a group that is empty, but not one that is a mount point.
keep_slices() {
    for hierarchy in $(awk '$3 == "cgroup" {print $2}' /proc/mounts | sort -u); do
        for slice in kubelet kubelet.slice; do
            mkdir -p "$hierarchy/$slice"
            for file in cpuset.cpus cpuset.mems; do
                [ ! -e "$hierarchy/$file" ] || cat "$hierarchy/$file" > "$hierarchy/$slice/$file"
            done
            mount --bind "$hierarchy/$slice" "$hierarchy/$slice"
        done
    done
}

# What belongs to the machine and not to a namespace stays as it is. kubelet finds there what it wants, and so writes nothing.
hide_tunables() {
    for dir in fs kernel vm; do
        mount --bind /proc/sys/$dir /proc/sys/$dir
        mount -o remount,bind,ro /proc/sys/$dir
    done
    mkdir -p /kind/tunables
    for tunable in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        file=${tunable%=*} stand_in=/kind/tunables/${tunable//\//.}
        echo "${tunable#*=}" > "$stand_in"
        [ ! -e "/proc/sys/$file" ] || mount --bind "$stand_in" "/proc/sys/$file"
    done
}

# Docker's name server is at a loopback address, where pods have themselves. They, and the node too, are given the address of the
# gateway instead, which leads there.
lead_to_name_server() {
    gateway=$(ip -4 route show default | cut -d ' ' -f 3)
    echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet
    iptables -t nat -S DOCKER_OUTPUT \
        | sed -n 's/.*-p \([a-z]*\) .*--to-destination \(127[0-9.:]*\)$/\1 \2/p' | while read -r protocol to; do
        for chain in OUTPUT PREROUTING; do
            iptables -t nat -A "$chain" -d "$gateway" -p "$protocol" --dport 53 -j DNAT --to-destination "$to"
        done
    done
    # In place: it is a mount point.
    changed=$(sed "s/127\.0\.0\.11/$gateway/" /etc/resolv.conf)
    echo "$changed" > /etc/resolv.conf
}

mount -o remount,ro /sys
mount --make-rshared /
mount --make-rprivate /sys/fs/cgroup
! is_v1 || keep_slices
hide_tunables
# A machine of its own, unlike the others that are made of this image.
rm -f /etc/machine-id
systemd-machine-id-setup > /dev/null
cat /proc/sys/kernel/random/uuid > /kind/product_uuid
# kubelet looks for the kernel's messages.
[ -e /dev/kmsg ] || ln -s /dev/console /dev/kmsg
! grep -q '^nameserver 127.0.0.11' /etc/resolv.conf || lead_to_name_server
if is_v1; then
    # Else systemd mounts a hierarchy of version 2 beside them, which no runtime has made the container's own.
    set -- "$@" systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1
fi
exec "$@"
