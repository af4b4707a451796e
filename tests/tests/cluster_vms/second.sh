#!/bin/sh
# A network plugin that does for VMs named over-* what multus does by their pods' annotation: a second interface, net1, of the network
# whose definition it was installed with. It stands before the pods' own plugin, which begins its result anew.
case $CNI_COMMAND:$CNI_ARGS in
    VERSION:*) echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0"]}' ;;
    *K8S_POD_NAME=over-*) CNI_IFNAME=net1 exec "${0%/*}/bridge" < "${0%/*}/second.json" ;;
    ADD:*) echo '{"cniVersion": "0.4.0", "interfaces": [], "ips": []}' ;;
esac
