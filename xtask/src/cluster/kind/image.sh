#!/bin/bash
# The image of kind's nodes, as an archive for `docker import`.
#
#   image.sh WORK    WORK/parts says where the programs and the root file systems are; files/ holds those of ours
#
# It is a Debian with systemd and containerd, our programs, and the images of the cluster's own pods as archives, because no node
# has anybody to fetch them from.
set -euo pipefail
work=$1
. "$work/parts"
plain=(--sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner)
busybox='"/bin/busybox"'
version=$("$plane/kubectl" version --client -o yaml | sed -n 's/.*gitVersion: //p')
wanted=$("$kubeadm/kubeadm" config images list --kubernetes-version "$version")

# The image of that name as kubeadm refers to it.
reference() { grep "/$1:" <<< "$wanted"; }

sum() { sha256sum "$1" | cut -d ' ' -f 1; }

# Adds a blob to the layout and says how others name it: TYPE FILE
blob() {
    local digest size
    digest=$(sum "$2") size=$(stat -c %s "$2")
    mv "$2" "$work/layout/blobs/sha256/$digest"
    printf '{"mediaType": "application/vnd.oci.image.%s", "digest": "sha256:%s", "size": %s}' "$1" "$digest" "$size"
}

# Packs the tree that lies in WORK/tree, which is used up: ARCHIVE REFERENCE ENTRYPOINT
pack() {
    local layer diff config manifest
    echo "    $2"
    mkdir -p "$work/layout/blobs/sha256"
    tar "${plain[@]}" -C "$work/tree" -cf "$work/layer" .
    diff=$(sum "$work/layer")
    layer=$(blob layer.v1.tar "$work/layer")
    cat > "$work/config" <<JSON
{"architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z",
 "config": {"Entrypoint": [$3], "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$diff"]}}
JSON
    config=$(blob config.v1+json "$work/config")
    printf '{"schemaVersion": 2, "config": %s, "layers": [%s]}' "$config" "$layer" > "$work/manifest"
    manifest=$(blob manifest.v1+json "$work/manifest")
    printf '{"schemaVersion": 2, "manifests": [%s, "annotations": {"io.containerd.image.name": "%s"}}]}' \
        "${manifest%\}}" "$2" > "$work/layout/index.json"
    echo '{"imageLayoutVersion": "1.0.0"}' > "$work/layout/oci-layout"
    tar "${plain[@]}" -C "$work/layout" -cf "$1" .
    rm -rf "$work/layout" "$work/tree"
}

# A program as the only file of an image: ARCHIVE REFERENCE FROM
pack_program() {
    local name=${3##*/}
    install -D "$3" "$work/tree/usr/local/bin/$name"
    mkdir -m 1777 "$work/tree/tmp"
    pack "$1" "$2" "\"/usr/local/bin/$name\""
}

# kube-proxy calls the iptables of the node's own packages, whose extensions have libraries of their own.
pack_proxy() {
    local tree=$work/tree libraries=usr/lib/x86_64-linux-gnu link file
    mkdir -p "$tree/usr/bin" "$tree/usr/sbin" "$tree/usr/lib64" "$tree/$libraries" "$tree/run" "$tree/etc"
    for link in bin sbin lib lib64; do cp -a "$node/$link" "$tree/$link"; done
    install -D "$kubeadm/kube-proxy" "$tree/usr/local/bin/kube-proxy"
    install "$node/usr/sbin/xtables-nft-multi" "$tree/usr/sbin/"
    for link in ip{,6}tables{,-save,-restore}; do ln -s xtables-nft-multi "$tree/usr/sbin/$link"; done
    cp -a "$node/$libraries/xtables" "$tree/$libraries/"
    chroot "$node" sh -c "ldd /usr/sbin/xtables-nft-multi /$libraries/xtables/*.so" \
        | grep -o '/lib[^ ]*\.so[^ :]*' | grep -v /xtables/ | sort -u | while read -r file; do
        cp -L "$node$file" "$tree/usr$file"
    done
    pack "$1" "$(reference kube-proxy)" '"/usr/local/bin/kube-proxy"'
}

pack_all() { # DIRECTORY
    local name
    mkdir -p "$1/control-plane"
    for name in kube-apiserver kube-controller-manager; do
        pack_program "$1/control-plane/$name.tar" "$(reference "$name")" "$plane/$name"
    done
    pack_program "$1/control-plane/etcd.tar" "$(reference etcd)" "$plane/etcd"
    # On every node: Bellows runs one more wherever it is put.
    pack_program "$1/kube-scheduler.tar" "$(reference kube-scheduler)" "$plane/kube-scheduler"
    pack_program "$1/coredns.tar" "$(reference coredns)" "$coredns/coredns"
    pack_proxy "$1/kube-proxy.tar"
    install -D "$node/bin/busybox" "$work/tree/bin/busybox"
    pack "$1/pause.tar" "$(reference pause)" "$busybox, \"sleep\", \"2147483647\""
    install -D "$node/bin/busybox" "$work/tree/bin/busybox"
    for name in cat ip mv sh sleep; do ln -s busybox "$work/tree/bin/$name"; done
    install -D "$plane/kubectl" "$work/tree/usr/local/bin/kubectl"
    install "$work/files/network.sh" "$work/tree/network.sh"
    pack "$1/node-network.tar" bellows.invalid/node-network:1 "$busybox, \"sh\", \"/network.sh\""
}

# Nothing starts but what a node is there for: some of the rest would write into the machine's own settings of its kernel.
choose_units() {
    local units=$root/etc/systemd/system unit
    rm -f "$units"/*.wants/*
    find "$root/usr/lib/systemd/system" \( -path '*/multi-user.target.wants/*' -o -path '*/local-fs.target.wants/*' \
        -o -path '*.wants/*udev*' -o -path '*.wants/*initctl*' -o -path '*.wants/systemd-tmpfiles-setup.service' \) -delete
    for unit in systemd-{sysctl,modules-load,udevd,logind,binfmt,tmpfiles-setup-dev}.service getty.target console-getty.service \
        sys-kernel-{debug,tracing,config}.mount dev-hugepages.mount proc-sys-fs-binfmt_misc.automount; do
        ln -sf /dev/null "$units/$unit"
    done
    mkdir -p "$units/multi-user.target.wants" "$units/node.target.wants"
    ln -s ../containerd.service "$units/multi-user.target.wants/"
    ln -s ../node-images.service ../kubelet.service "$units/node.target.wants/"
    ln -s node.target "$units/default.target"
}

fill() {
    local files=$work/files name
    install "$plane/kubectl" "$kubelet/kubelet" "$kubeadm/kubeadm" "$root/usr/bin/"
    install "$files/entrypoint.sh" "$root/usr/local/bin/entrypoint"
    install "$files/runc.sh" "$root/usr/local/sbin/runc-without-sys-resource"
    install -D "$files/import-images.sh" "$root/kind/import-images"
    mkdir -p "$root/etc/containerd"
    sed "s|PAUSE|$(reference pause)|" "$files/containerd.toml" > "$root/etc/containerd/config.toml"
    for name in containerd.service kubelet.service kubelet.slice node-images.service node.target; do
        install -D -m 644 "$files/$name" "$root/etc/systemd/system/$name"
    done
    # kind looks for these three.
    install -D -m 644 "$files/network.yaml" "$root/kind/manifests/default-cni.yaml"
    install -D -m 644 "$files/storage.yaml" "$root/kind/manifests/default-storage.yaml"
    printf %s "$version" > "$root/kind/version"
    mkdir -p "$root/etc/kubernetes/manifests" "$root/opt/cni" "$root/etc/cni/net.d" "$root/etc/systemd/journald.conf.d"
    ln -s /usr/lib/cni "$root/opt/cni/bin"
    printf '[Journal]\nReadKMsg=no\nStorage=volatile\n' > "$root/etc/systemd/journald.conf.d/node.conf"
    rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*
}

root=$work/root
rm -rf "$root" "$work/tree" "$work/layout"
cp -a "$node" "$root"
fill
choose_units
pack_all "$root/kind/images"
tar --sort=name --mtime=@0 --numeric-owner -C "$root" -cf "$work/out/node.tar" .
rm -rf "$root"
