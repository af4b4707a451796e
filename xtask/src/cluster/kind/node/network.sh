#!/bin/sh
# Gives the pods of a node addresses out of its own range, and lays routes to those of the other nodes. kubectl finds the API
# server by its service, which kube-proxy makes known on the node: that needs no network of pods.
template='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}'
configuration=/etc/cni/net.d/10-pods.conflist

write() { # RANGE
    cat > /etc/cni/net.d/.new <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state", "ranges": [[{"subnet": "$1"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
    mv /etc/cni/net.d/.new "$configuration"
}

while true; do
    if nodes=$(kubectl get nodes -o "jsonpath=$template"); then
        echo "$nodes" | while read -r name range address; do
            if [ -z "$address" ]; then
                continue
            elif [ "$name" != "$NODE" ]; then
                ip route replace "$range" via "$address"
            elif [ ! -e "$configuration" ]; then
                write "$range"
            fi
        done
        sleep 5
    else
        sleep 1
    fi
done
