//! The manifests as text: their pods can be rolled out, drained and restarted, and may do only what
//! their programs do. `install` compares the chart with them, `install_cluster` installs it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bellows_tests::checkout;
use serde_json::Value;

const PARTS: [&str; 7] = [
    "agent",
    "controller",
    "fleet",
    "fleet-controller",
    "overlay",
    "policies",
    "scheduler",
];

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The objects of a part.
fn objects(part: &str) -> Vec<Value> {
    let folder = checkout().join("deploy/chart/bellows/parts").join(part);
    let entries = std::fs::read_dir(&folder).expect("a folder");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let files = files.filter(|file| file.extension().is_some_and(|end| end == "yaml"));
    let texts = files.map(|file| read(&file));
    texts.flat_map(|text| documents(&text)).collect()
}

fn documents(text: &str) -> Vec<Value> {
    let one = |text: &str| {
        serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"))
    };
    let all = text
        .split("\n---")
        .map(|text| one(text.trim_start_matches("---")));
    all.filter(|object: &Value| object["kind"] != "Kustomization")
        .collect()
}

fn of_kind(part: &str, kind: &str) -> Vec<Value> {
    let mut found = objects(part);
    found.retain(|object| object["kind"] == kind);
    found
}

/// Rounds a number or a percentage of `whole` as Kubernetes does.
fn scaled(value: &Value, whole: u64) -> u64 {
    let hundredths = |text: &str| text.strip_suffix('%')?.parse::<u64>().ok();
    let part = value.as_str().and_then(hundredths).map(|n| n * whole / 100);
    value.as_u64().or(part).expect("a number or hundredths")
}

/// Old and new pods at the end of a rollout, by the arithmetic of Kubernetes' controller. One pod
/// is ready at a time, and a new one only if no old one is left.
fn rolled_out(replicas: u64, surge: u64, unavailable: u64) -> (u64, u64) {
    let (mut old, mut new) = (replicas, 0);
    let least = replicas - unavailable.min(replicas);
    loop {
        let before = (old, new);
        new = replicas
            .min((replicas + surge).saturating_sub(old))
            .max(new);
        let ready_new = u64::from(old == 0);
        let may_go = (old + new).saturating_sub(least + (new - ready_new.min(new)));
        let ready_old = u64::from(old > 0);
        let waiting = (old - ready_old).min(may_go);
        old -= waiting;
        let ready = ready_old + ready_new;
        old -= old.min(may_go - waiting).min(ready.saturating_sub(least));
        if (old, new) == before {
            return before;
        }
    }
}

#[test]
fn rollout_of_the_scheduler_ends_and_drains_are_not_delayed() {
    let deployments = of_kind("scheduler", "Deployment");
    let [deployment] = &deployments[..] else {
        panic!("{deployments:?}");
    };
    let spec = &deployment["spec"];
    let rolling = &spec["strategy"]["rollingUpdate"];
    for replicas in [1, 2, 3] {
        let surge = scaled(&rolling["maxSurge"], replicas);
        let unavailable = scaled(&rolling["maxUnavailable"], replicas);
        assert_eq!(
            rolled_out(replicas, surge, unavailable),
            (0, replicas),
            "with {replicas} replicas"
        );
    }
    // A rollout that never completes is not reported as failed.
    assert_eq!(spec["progressDeadlineSeconds"], i32::MAX);
    // Any budget that lets go of the only ready one is none.
    assert_eq!(
        of_kind("scheduler", "PodDisruptionBudget"),
        Vec::<Value>::new()
    );
    let budgets = of_kind("controller", "PodDisruptionBudget");
    assert_eq!(
        budgets[0]["spec"]["maxUnavailable"], 1,
        "all of them are ready"
    );
}

/// Two agents of a node would write one folder.
#[test]
fn rollout_of_the_agent_ends_one_pod_of_a_node_before_the_next_begins() {
    let sets = of_kind("agent", "DaemonSet");
    let [set] = &sets[..] else {
        panic!("{sets:?}");
    };
    let surge = &set["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"];
    assert!(
        surge.is_null() || surge == 0,
        "Kubernetes' default is 0: {surge}"
    );
}

#[test]
fn a_rollout_that_waits_for_a_second_leader_is_known_for_one() {
    assert_eq!(rolled_out(2, 1, 0), (2, 1));
    assert_eq!(rolled_out(2, 1, 1), (1, 2));
    assert_eq!(rolled_out(2, 0, 2), (0, 2));
}

#[test]
fn every_component_has_readiness_and_liveness_probes() {
    let mut asked = Vec::new();
    for part in ["agent", "controller", "fleet", "policies", "scheduler"] {
        let kinds = ["Deployment", "DaemonSet"];
        for pods in kinds.iter().flat_map(|kind| of_kind(part, kind)) {
            let containers = pods["spec"]["template"]["spec"]["containers"].clone();
            for container in containers.as_array().expect("containers") {
                let name = container["name"].as_str().expect("a name").to_owned();
                if name == "kube-scheduler" {
                    continue;
                }
                for (probe, path) in [("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")]
                {
                    let ask = &container[probe]["httpGet"];
                    assert_eq!(ask["path"], path, "{probe} of {name}");
                    let mut ports = container["ports"].as_array().into_iter().flatten();
                    assert!(
                        ports.any(|port| port["name"] == ask["port"]),
                        "{probe} of {name}"
                    );
                }
                asked.push((name, container["livenessProbe"].clone()));
            }
        }
    }
    assert_eq!(asked.len(), 5, "{asked:?}");
    // An agent that is busy with all VMs of its node at once is not restarted for it.
    let (_, agent) = asked
        .iter()
        .find(|(name, _)| name == "autoscaler-agent")
        .expect("it is asked");
    let number = |field: &str| agent[field].as_u64().expect("it is said");
    assert!(number("periodSeconds") * number("failureThreshold") >= 60);
}

/// Requests of the programs: component, source file, kind (with a name), verbs. Foreign roles,
/// which the scheduler also has, are not included.
const DONE: &str = "
agent agent/src/shell/vms.rs virtualmachines list watch
agent agent/src/shell/patch.rs virtualmachines patch
agent agent/src/shell/modes.rs namespaces list watch
agent agent/src/shell/schedulers.rs pods list watch
agent agent/src/shell/policy/known.rs namespaces list watch
agent agent/src/shell/policy/known.rs scalingpolicies list watch
agent agent/src/shell/policy/revisions.rs controllerrevisions get
agent agent/src/shell/policy/vm/fallback.rs events create
scheduler scheduler/src/shell/watching.rs virtualmachines list watch
scheduler scheduler/src/shell/api.rs virtualmachines get patch
scheduler scheduler/src/shell/watching.rs virtualmachinemigrations list watch
scheduler scheduler/src/shell/api.rs virtualmachinemigrations create delete
scheduler leader-election/src/shell/follower.rs leases/autoscale-scheduler list watch
scheduler deploy/chart/bellows/parts/scheduler/kube-scheduler.yaml leases/autoscale-scheduler get update
controller neonvm-shim/controller/src/shell.rs virtualmachines list watch
controller neonvm-shim/controller/src/shell/vm_actions.rs virtualmachines get patch
controller neonvm-shim/controller/src/shell/vm_actions.rs virtualmachines/status patch
controller neonvm-shim/controller/src/shell/set_actions.rs virtualmachines get create delete
controller neonvm-shim/controller/src/shell/sets.rs virtualmachinesets list watch
controller neonvm-shim/controller/src/shell/set_actions.rs virtualmachinesets/status patch
controller neonvm-shim/controller/src/shell/set_actions.rs configmaps get create patch
controller neonvm-shim/controller/src/shell.rs virtualmachinemigrations list watch
controller neonvm-shim/controller/src/shell/migration_driver.rs virtualmachinemigrations get patch
controller neonvm-shim/controller/src/shell/migration_driver.rs virtualmachinemigrations/status patch
controller neonvm-shim/controller/src/shell.rs pods list watch
controller neonvm-shim/controller/src/shell/api/pods.rs pods get create patch delete
controller neonvm-shim/controller/src/shell/api/pods.rs pods/resize patch
controller neonvm-shim/controller/src/shell/api/secrets.rs secrets get create patch
controller neonvm-shim/controller/src/shell/certificate.rs secrets delete
controller neonvm-shim/controller/src/shell/webhook/keeper.rs secrets/webhook-server-cert list watch patch
controller neonvm-shim/controller/src/shell/webhook/keeper.rs mutatingwebhookconfigurations/neonvm-mutating-webhook-configuration list watch patch
controller neonvm-shim/controller/src/shell/webhook/keeper.rs validatingwebhookconfigurations/neonvm-validating-webhook-configuration list watch patch
controller neonvm-shim/controller/src/shell/overlay.rs ippools get create patch
controller neonvm-shim/controller/src/shell/overlay.rs network-attachment-definitions get
controller neonvm-shim/controller/src/shell/certificate.rs certificaterequests get watch create delete
controller neonvm-shim/controller/src/shell/api/client.rs events create patch
controller leader-election/src/shell/follower.rs leases create
controller leader-election/src/shell/follower.rs leases/a3b22509.neon.tech get list watch patch
fleet fleet/store/src/load.rs fleetenvironments list
fleet fleet/store/src/load.rs fleetdeployments list
fleet fleet/store/src/load.rs fleetinstances list
fleet fleet/store/src/load.rs controllerrevisions list
fleet fleet/store/src/write.rs fleetenvironments update
fleet fleet/store/src/write.rs fleetenvironments/status update
fleet fleet/store/src/write.rs fleetdeployments create
fleet fleet/store/src/write.rs fleetdeployments/status update
fleet fleet/store/src/write.rs fleetinstances create update
fleet fleet/store/src/write.rs fleetinstances/status update
fleet fleet/store/src/follow.rs fleetchannels list
fleet fleet/store/src/follow.rs fleetchannels/status update
fleet fleet/store/src/follow.rs controllerrevisions create
fleet fleet/shell/src/look.rs virtualmachines list
fleet fleet/shell/src/look.rs namespaces list
fleet fleet/shell/src/look.rs nodes list
fleet fleet/shell/src/look.rs pods list
fleet fleet/shell/src/nodes/daemon_set.rs daemonsets/autoscaler-agent get update
fleet fleet/shell/src/nodes/orders.rs pods delete
fleet fleet/shell/src/nodes/agents.rs configmaps list
fleet agent/src/shell/schedule.rs configmaps create patch
fleet agent/src/shell/schedule.rs nodes get
fleet fleet/shell/src/runners/pods.rs secrets get
fleet fleet/shell/src/events.rs events create
fleet fleet/shell/src/services/orders.rs deployments/autoscale-scheduler get patch
fleet fleet/shell/src/services/orders.rs deployments/bellows-fleet get patch
fleet fleet/shell/src/services.rs leases/autoscale-scheduler get
fleet-controller fleet/shell/src/services/orders.rs deployments/neonvm-controller get patch
fleet-controller fleet/shell/src/services.rs leases/a3b22509.neon.tech get
fleet fleet/shell/src/moves/orders.rs virtualmachines get patch use-privileged
fleet fleet/shell/src/schedules.rs virtualmachines patch
fleet fleet/shell/src/moves/look.rs virtualmachinemigrations list
fleet fleet/shell/src/moves/orders.rs virtualmachinemigrations create delete
fleet leader-election/src/shell/follower.rs leases create
fleet leader-election/src/shell/follower.rs leases/bellows-fleet get list watch patch
overlay neonvm-shim/vxlan/src/shell.rs nodes list watch
policies policy/controller/src/shell.rs scalingpolicies list
policies policy/controller/src/shell.rs scalingpolicies/status update
policies policy/controller/src/shell.rs controllerrevisions list create delete
policies policy/controller/src/shell.rs events create
policies policy/controller/src/shell/agents.rs pods list
policies policy/controller/src/shell/sets.rs scalingpolicies/status patch
policies policy/controller/src/shell/sets.rs virtualmachinesets list patch
policies policy/controller/src/shell/sets.rs nodes list
policies policy/controller/src/shell/sets/wishes.rs capacitywishes list create patch delete
policies leader-election/src/shell/follower.rs leases create
policies leader-election/src/shell/follower.rs leases/bellows-policy get list watch patch
";

type Rights = BTreeMap<(String, String), BTreeSet<String>>;

/// Rights of a component's roles by kind, or by kind and name. Webhook configurations have one name
/// only.
fn given(part: &str, rights: &mut Rights) {
    let roles = ["ClusterRole", "Role"]
        .into_iter()
        .flat_map(|kind| of_kind(part, kind));
    let rules = roles.flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default());
    for rule in rules {
        let texts = |field: &str| -> Vec<String> {
            let list = rule[field].as_array().into_iter().flatten();
            list.map(|one| one.as_str().expect("a text").to_owned())
                .collect()
        };
        for resource in texts("resources") {
            let names = texts("resourceNames");
            let first = resource.split("webhook").next().expect("a part");
            let own = names
                .iter()
                .filter(|name| names.len() == 1 || name.contains(first));
            let mut keys: Vec<String> = own.map(|name| format!("{resource}/{name}")).collect();
            if names.is_empty() {
                keys.push(resource);
            }
            for key in keys {
                rights
                    .entry((part.to_owned(), key))
                    .or_default()
                    .extend(texts("verbs"));
            }
        }
    }
}

#[test]
fn no_part_may_do_what_its_program_does_not() {
    let (mut may, mut done) = (Rights::new(), Rights::new());
    PARTS.iter().for_each(|part| given(part, &mut may));
    // Not used by a program. The API server requires it from creators of objects that block their
    // owners' deletion.
    may.retain(|(_, kind), _| !kind.ends_with("/finalizers"));
    for line in DONE.trim().lines() {
        let mut words = line.split_whitespace().map(str::to_owned);
        let mut word = || words.next().expect("a word");
        let (part, file, kind) = (word(), word(), word());
        assert!(checkout().join(&file).is_file(), "{file}");
        done.entry((part, kind)).or_default().extend(words);
    }
    assert_eq!(may, done);
}

#[test]
fn accounts_that_pages_and_options_name_are_there() {
    let named = "system:serviceaccount:";
    let mut found = 0;
    for file in [
        "docs/scheduler.md",
        "scheduler/src/args.rs",
        "scheduler/src/shell/callers.rs",
    ] {
        let text = read(&checkout().join(file));
        let text = text.split("#[cfg(test)]").next().expect("a part");
        for (at, _) in text.match_indices(named) {
            let rest = &text[at + named.len()..];
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == ':';
            let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            let account = rest[..end]
                .strip_prefix("kube-system:")
                .expect("our namespace");
            let accounts = PARTS
                .iter()
                .flat_map(|part| of_kind(part, "ServiceAccount"));
            let mut names = accounts.map(|account| account["metadata"]["name"].clone());
            assert!(names.any(|name| name == account), "{file}: {account}");
            found += 1;
        }
    }
    assert!(found >= 3, "{found}");
}
