//! Lists and watch events: what they change in the ledger and in the parts of the core.

use std::collections::BTreeSet;

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;

use super::Core;
use super::event::{Action, Event};
use super::pod_requests::PodView;
use super::view::NodeView;

impl Core {
    pub(super) fn observe(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::NodesListed(nodes) => self.nodes_listed(nodes),
            Event::NodeApplied(node) => self.ledger.node_applied(node),
            Event::NodeDeleted(name) => self.ledger.node_deleted(&name),
            Event::PodsListed(pods) => {
                let here: BTreeSet<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
                let gone = self
                    .ledger
                    .pods()
                    .filter(|pod| !here.contains(&pod.view.uid));
                let gone: Vec<String> = gone.map(|pod| pod.view.uid.clone()).collect();
                gone.iter().for_each(|uid| self.pod_deleted(uid));
                pods.into_iter().for_each(|pod| self.pod_applied(pod, true));
                self.synced.pods = true;
            }
            Event::PodApplied(pod) => self.pod_applied(pod, false),
            Event::PodDeleted(uid) => self.pod_deleted(&uid),
            Event::VmsListed(vms) => {
                let here: BTreeSet<&String> = vms.iter().map(|vm| &vm.uid).collect();
                let absent = self.ledger.vms().filter(|vm| !here.contains(&vm.view.uid));
                let gone: Vec<(NamespacedName, String)> = absent
                    .map(|vm| (vm.view.key.clone(), vm.view.uid.clone()))
                    .collect();
                gone.iter().for_each(|(key, uid)| self.vm_deleted(key, uid));
                vms.into_iter().for_each(|vm| {
                    self.ledger.vm_observed(vm);
                });
                self.synced.vms = true;
            }
            Event::VmApplied(vm) => {
                self.ledger.vm_observed(vm);
            }
            Event::VmDeleted(key, uid) => self.vm_deleted(&key, &uid),
            Event::MigrationsListed(views) => self.migrate.listed(now, &self.ledger, views),
            Event::MigrationApplied(view) => self.migrate.applied(now, &self.ledger, view),
            Event::MigrationDeleted(key, uid) => {
                self.migrate.gone(now, &self.ledger, &key, &uid);
            }
            Event::PermitRequest(..)
            | Event::WriteDone(..)
            | Event::ReadDone(..)
            | Event::BindDone(..)
            | Event::MigrationDone(..)
            | Event::ExtenderRequest(..)
            | Event::PodRead(..)
            | Event::WatchProgress(..)
            | Event::Lease(..) => {}
        }
    }

    fn nodes_listed(&mut self, nodes: Vec<NodeView>) {
        let here: BTreeSet<String> = nodes.iter().map(|node| node.name.clone()).collect();
        let gone = self
            .ledger
            .nodes()
            .filter(|node| !here.contains(&node.name));
        let gone: Vec<String> = gone.map(|node| node.name.clone()).collect();
        gone.iter().for_each(|name| self.ledger.node_deleted(name));
        nodes
            .into_iter()
            .for_each(|node| self.ledger.node_applied(node));
        self.synced.nodes = true;
    }

    fn pod_applied(&mut self, pod: PodView, is_listed: bool) {
        for warning in self.pod_warnings.pod_applied(&self.ledger, &pod, is_listed) {
            // A list may contain thousands of such pods from before. The state dump and the metric
            // show them.
            if !is_listed {
                self.out.push_back(Action::WarnOnPod {
                    pod: pod.key.clone(),
                    uid: pod.uid.clone(),
                    warning,
                });
            }
        }
        self.placement.pod_applied(&self.ledger, &pod);
        self.migrate.pod_applied(&pod);
        if pod.node.is_some() || pod.terminal {
            self.extender.pod_decided(&pod.uid);
        }
        self.ledger.pod_applied(pod);
    }

    fn pod_deleted(&mut self, uid: &str) {
        if let Some(entry) = self.ledger.pod(uid) {
            self.placement.pod_deleted(&entry.view);
        }
        self.extender.pod_decided(uid);
        self.pod_warnings.pod_deleted(uid);
        self.ledger.pod_deleted(uid);
    }

    fn vm_deleted(&mut self, key: &NamespacedName, uid: &str) {
        if self
            .ledger
            .vm(key)
            .is_some_and(|entry| entry.view.uid == uid)
        {
            self.ledger.vm_deleted(key, uid);
            self.permits.vm_gone(key);
            self.denied_increases.gone(key);
            self.migrate.vm_gone(key);
        }
    }
}
