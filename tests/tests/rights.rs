//! Rights of people on VMs: viewers and editors of a namespace, through Kubernetes' own roles. Its
//! controllers aggregate ours into them (`deploy/crds`).

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bellows_tests::cluster::{ControlPlane, Lifetime, Tier, cluster_or_skip};
use bellows_tests::patience::wait_for;

/// Longest time until the controllers aggregate roles on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const SPACE: &str = "team";
const KINDS: [&str; 3] = [
    "virtualmachines.vm.neon.tech",
    "virtualmachinemigrations.vm.neon.tech",
    "virtualmachinesets.policy.bellows.dev",
];
/// Kinds about VMs of all namespaces. Nobody has them by a role of one.
const OF_OPERATORS: [&str; 3] = [
    "capacitywishes.policy.bellows.dev",
    "scalingpolicies.policy.bellows.dev",
    "fleetenvironments.fleet.bellows.dev",
];
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 4] = ["create", "update", "patch", "delete"];

/// A user with a role of Kubernetes' own in one namespace.
struct Person<'a> {
    plane: &'a ControlPlane,
    name: &'a str,
}

impl<'a> Person<'a> {
    fn with(plane: &'a ControlPlane, name: &'a str) -> Self {
        let (role, account) = (
            format!("--clusterrole={name}"),
            format!("--serviceaccount={SPACE}:{name}"),
        );
        let within = ["--namespace", SPACE];
        let make = |words: &[&str]| {
            let words = [words, &within].concat();
            plane.ask(&words).unwrap();
        };
        make(&["create", "serviceaccount", name]);
        make(&["create", "rolebinding", name, &role, &account]);
        Self { plane, name }
    }

    /// Answer of `kubectl auth can-i`, which fails on a no.
    fn may(&self, namespace: &str, verb: &str, kind: &str, more: &[&str]) -> bool {
        let who = format!("--as=system:serviceaccount:{SPACE}:{}", self.name);
        let mut ask = self.plane.kubectl();
        ask.args(["auth", "can-i", verb, kind, &who, "--namespace", namespace])
            .args(more);
        let output = ask.output().unwrap();
        match String::from_utf8_lossy(&output.stdout).trim() {
            "yes" => true,
            "no" => false,
            _ => panic!("{output:?}"),
        }
    }

    async fn comes_to(&self, verb: &str, kind: &str, more: &[&str]) {
        let what = format!("that {} may {verb} {kind} {more:?}", self.name);
        wait_for(&what, PATIENCE, || async {
            if self.may(SPACE, verb, kind, more) {
                Ok(())
            } else {
                Err("no".to_owned())
            }
        })
        .await
        .unwrap();
    }
}

/// Requirement: N47
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_on_a_namespace_include_its_vms() {
    let test = "rights_on_a_namespace_include_its_vms";
    let Some(programs) = cluster_or_skip(test) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let started = ControlPlane::start(programs, dir.path(), Tier::Full, Lifetime::WithUs);
    let plane = started.await.unwrap();
    plane.install_kinds().unwrap();
    plane.namespace(SPACE).await.unwrap();
    let status: &[&str] = &["--subresource=status"];
    let people = ["view", "edit", "admin"].map(|name| Person::with(&plane, name));
    for (person, kind) in people.iter().flat_map(|it| KINDS.map(|kind| (it, kind))) {
        let writes = person.name != "view";
        let wanted = READ.iter().chain(WRITE.iter().filter(|_| writes));
        for verb in wanted {
            person.comes_to(verb, kind, &[]).await;
        }
        person.comes_to("get", kind, status).await;
    }
    // Now that the roles are whole: no more than that, and nowhere else.
    for (person, kind) in people.iter().flat_map(|it| KINDS.map(|kind| (it, kind))) {
        let may = |verb: &str, more: &[&str]| person.may(SPACE, verb, kind, more);
        let who = person.name;
        for verb in WRITE {
            assert_eq!(may(verb, &[]), who != "view", "{who} {verb} {kind}");
            assert!(!may(verb, status), "{who} {verb} {kind}/status");
        }
        assert!(!person.may("default", "get", kind, &[]), "{who} {kind}");
    }
    for (person, kind) in people
        .iter()
        .flat_map(|it| OF_OPERATORS.map(|kind| (it, kind)))
    {
        for verb in READ.iter().chain(&WRITE) {
            let who = person.name;
            assert!(!person.may(SPACE, verb, kind, &[]), "{who} {verb} {kind}");
        }
    }
    // The answer agrees with what the API serves.
    for (who, namespace, is_served) in [("view", SPACE, true), ("view", "default", false)] {
        let who = format!("--as=system:serviceaccount:{SPACE}:{who}");
        let asked = plane.ask(&["get", "neonvm,neonvmm", &who, "--namespace", namespace]);
        assert_eq!(asked.is_ok(), is_served, "{asked:?}");
    }
}
