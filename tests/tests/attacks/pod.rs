//! Attacker: a pod of the cluster. It has the pod network. It needs nodes, and so is played by case
//! `pod_reaches_nothing_at_our_ports_but_pages_of_metrics` of `cluster_vms`
//! (`tests/tests/cluster_vms/attacker.rs`).
