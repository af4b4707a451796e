//! Attacker: a pod of the cluster. It has the pod network.
