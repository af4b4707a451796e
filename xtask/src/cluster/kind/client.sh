#!/bin/sh
# docker, kind, kubectl and helm for the Docker of this directory, each under its own name. The first two go by its socket; the
# others reach an API server only from within its network.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/parts"
export DOCKER_HOST="unix://$here/docker.sock"
inside() { exec nsenter --net="/proc/$(cat "$here/process")/ns/net" "$@"; }
case ${0##*/} in
    docker)
        # Built for the libraries of its own root file system.
        exec "$docker/lib64/ld-linux-x86-64.so.2" --library-path "$docker/usr/lib/x86_64-linux-gnu" "$docker/usr/bin/docker" "$@"
        ;;
    kind)
        # The node image that kind knows by itself is in a registry.
        case "$* " in
            *--image[=\ ]*) ;;
            "create cluster "*) set -- "$@" --image "$image" ;;
        esac
        exec "$kind/kind" "$@"
        ;;
    kubectl) inside "$plane/kubectl" "$@" ;;
    helm) inside "$helm/helm" "$@" ;;
esac
