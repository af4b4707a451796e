#!/bin/sh
# A Kubernetes node as a set of namespaces. Its files are a layer over a Debian root file system; nothing of the host changes.
#
#   node.sh start CGROUP DIR ROOT NAME ADDRESS PODS ROUTES
#     CGROUP   name of the control group to be in, made below every hierarchy
#     DIR      the cluster's directory: pki/ and this node's nodes/NAME/, seen inside as /cluster
#     ROOT     the root file system, which is only read
#     ADDRESS  of this node on the cluster's switch; PODS the addresses of its pods
#     ROUTES   pods=node,...: where the pods of the other nodes are
#
# Stage `start` runs outside and goes on as the parent of stage `inside`, which becomes the first process of the node.
# Whatever ends either of them ends the node and all its pods.
set -eu
stage=$1 cgroup=$2 dir=$3 root=$4 name=$5 address=$6 pods=$7 routes=$8
gateway=10.199.0.1
here=$dir/nodes/$name

. "$dir/groups.sh"

join_everywhere() { # PARENT NAME
    directories=$(hierarchies | cut -d ' ' -f 1)
    # shellcheck disable=SC2086 # one word each
    join_group "$1" "$2" ${directories:-/sys/fs/cgroup}
}

start() {
    mkdir -p "$here/upper" "$here/work" "$here/root" "$here/containerd" "$here/kubelet"
    join_everywhere "" "$cgroup"
    join_everywhere "$cgroup" "$name"
    # A node is a whole machine, not one process among those of this one.
    weigh_group "$cgroup" $(($(nproc) * 1000))
    weigh_group "$cgroup/$name" $(($(nproc) * 1000))
    # Nothing of who started us: a node has directories of its own.
    exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin unshare --mount --net --pid --fork --kill-child --uts --ipc --cgroup \
        sh "$dir/node.sh" inside "$cgroup" "$dir" "$root" "$name" "$address" "$pods" "$routes"
}

mount_everything() { # ROOT
    mount --make-rprivate /
    mount -t overlay overlay -o "lowerdir=$root,upperdir=$here/upper,workdir=$here/work" "$1"
    mkdir -p "$1/cluster" "$1/.old" "$1/var/lib/containerd" "$1/var/lib/kubelet" "$1/etc/cni/net.d"
    mount -t proc proc "$1/proc"
    mount -t sysfs sysfs "$1/sys"
    mount_control_groups "$1"
    mount --rbind /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/run"
    mount -t tmpfs tmpfs "$1/tmp"
    mount --bind "$dir" "$1/cluster"
    # The layers of containers cannot lie on a layer.
    mount --bind "$here/containerd" "$1/var/lib/containerd"
    mount --bind "$here/kubelet" "$1/var/lib/kubelet"
}

write_runtime() {
    runtime=/run/runc-without-sys-resource
    install -m 755 /cluster/runc.sh "$runtime"
    cat > /run/containerd.toml <<TOML
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/bellows/busybox:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "$runtime"
TOML
    cat > /etc/cni/net.d/10-pods.conflist <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
}

write_kubelet() {
    cat > /run/kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
oomScoreAdj: 0
failSwapOn: false
failCgroupV1: false
enforceNodeAllocatable: [pods]
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /cluster/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: /cluster/pki/$name.crt
tlsPrivateKeyFile: /cluster/pki/$name.key
resolvConf: ""
# Nobody answers there, and says so at once. Without one, kubelet tells of its lack at each look at a pod.
clusterDNS: [$address]
clusterDomain: cluster.local
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 4s
syncFrequency: 10s
YAML
}

network() {
    ip link set lo up
    # Who started us lays the cable, once it knows our process.
    until ip link show uplink > /dev/null 2>&1; do sleep 0.05; done
    ip address add "$address/24" dev uplink
    ip link set uplink up
    ip route add default via "$gateway"
    for route in $(echo "$routes" | tr , ' '); do
        ip route add "${route%=*}" via "${route#*=}"
    done
    echo 1 > /proc/sys/net/ipv4/ip_forward
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
    mount --make-rshared /
    hostname "$name"
    # There is nobody to ask: what has no address here has none.
    : > /etc/resolv.conf
    here=/cluster/nodes/$name
    network
    # Beside the pods as one, as where systemd starts them, and not each of their threads for itself.
    join_everywhere "" system.slice
    write_runtime
    write_kubelet
    containerd -c /run/containerd.toml > "/cluster/log/$name-containerd.log" 2>&1 < /dev/null &
    until ctr version > /dev/null 2>&1; do sleep 0.1; done
    touch "$here/containers"
    until [ -e "$here/images" ]; do sleep 0.05; done
    "/cluster/nodes/kubelet" --config=/run/kubelet.yaml --kubeconfig="/cluster/$name.kubeconfig" \
        --hostname-override="$name" --node-ip="$address" > "/cluster/log/$name-kubelet.log" 2>&1 < /dev/null &
    # What runs in the background becomes its child.
    exec tini -s -- sleep infinity
}

"$stage"
