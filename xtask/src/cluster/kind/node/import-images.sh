#!/bin/sh
# Gives containerd the images that lie on the node; those of the control plane only where it runs.
set -eu
for archive in /kind/images/*.tar /kind/images/control-plane/*.tar; do
    case $archive:$(hostname) in
        */control-plane/*:*control-plane*) ;;
        */control-plane/*) continue ;;
    esac
    ctr --namespace k8s.io images import "$archive"
done
touch /var/lib/containerd/.imported
