#!/bin/sh
# The network between the nodes of a cluster, and where its control plane runs: a bridge in a namespace of its own.
#
#   switch.sh DIR ROUTES     ROUTES  pods=node,...: where the pods of each node are
set -eu
ip link set lo up
ip link add nodes type bridge
ip address add 10.199.0.1/24 dev nodes
# The address under which pods know the API. It is served here, so that no node has to translate it.
ip address add 10.96.0.1/32 dev nodes
ip link set nodes up
for route in $(echo "$2" | tr , ' '); do
    ip route add "${route%=*}" via "${route#*=}"
done
touch "$1/switch"
exec sleep infinity
