#!/bin/sh
# Starts a program of the control plane, in this directory, with the share of the machine's CPU time that a pod of it has.
#
#   part.sh GROUP NAME MILLICPU PROGRAM...
#     GROUP     name of the cluster's control group
#     NAME      of the program, and of its group
#     MILLICPU  what kubeadm has the program's pod request
set -eu
group=$1 name=$2 milli=$3
shift 3
. ./groups.sh
join_group "$group" "$name" "$(share_hierarchy)"
weigh_group "$group/$name" "$milli"
exec "$@"
