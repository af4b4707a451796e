use daemon_kit::clock::Clock;
use policy_contract::{Fault, Spec};
use prometheus_client::registry::Registry;
use protocol::journal::{Answered, Milli};
use protocol::permit::NamespacedName;
use protocol::policy::Limits;
use protocol::time::Timestamp;

use super::super::known::{Policy, Versions};
use super::*;
use crate::core::world::core;
use crate::shell::config::Policies as Settings;

/// Most bytes of the state of a VM without a policy. 500 of them are half a percent of the agent.
const WITHOUT_POLICY: usize = 256;

fn vm_policy(runtime: &PolicyRuntime, core: &Core) -> VmPolicy {
    let name = |name: &str| NamespacedName {
        namespace: "default".to_owned(),
        name: name.to_owned(),
    };
    let subject = Arc::new(Subject {
        vm: name("vm"),
        pod: name("pod"),
        uid: "uid".to_owned(),
        pod_ip: "127.0.0.1".to_owned(),
        vsock_cid: None,
    });
    VmPolicy::new(runtime.clone(), subject, Arc::default(), core, Timestamp(1))
}

/// Policies of which `default` is for all VMs.
fn runtime(default: Option<&str>) -> PolicyRuntime {
    let settings = Settings {
        default: default.map(str::to_owned),
        ..Settings::default()
    };
    PolicyRuntime::new(settings, &mut Registry::default(), None, Clock::new()).0
}

fn publish(runtime: &PolicyRuntime, name: &str) {
    let policy = Policy::of(name, Spec::of_source("return 1"), Limits::default());
    let versions = Versions {
        live: Some(Arc::new(policy)),
        ..Versions::default()
    };
    let named = (name.to_owned(), Ok(versions));
    let policies = BTreeMap::from([named]);
    runtime
        .0
        .known
        .send_modify(|known| known.policies = policies);
}

#[test]
fn vm_without_a_policy_holds_next_to_nothing() {
    let (runtime, core) = (runtime(None), core());
    publish(&runtime, "other");
    let policy = vm_policy(&runtime, &core);
    assert!(policy.asked.is_empty() && policy.said.is_none() && policy.feeds.is_none());
    let size = size_of::<VmPolicy>();
    assert!(size <= WITHOUT_POLICY, "{size} B");
}

#[test]
fn version_that_was_never_asked_holds_no_past_and_no_replies() {
    let (runtime, core) = (runtime(Some("all")), core());
    let mut policy = vm_policy(&runtime, &core);
    assert!(policy.asked.is_empty(), "the policy is not known yet");
    publish(&runtime, "all");
    policy.choose(&core, Timestamp(2));
    let live = policy.asked.get(Role::Live).expect("a version decides");
    assert_eq!(live.past_bytes(), 0);
    assert!(policy.said.is_none());
}

#[test]
fn answer_is_dated_by_the_size_that_it_asks_for() {
    let core = core();
    let policy = Policy::of("all", Spec::of_source("return 1"), Limits::default());
    let mut active = Active::new(Role::Live, Arc::new(policy), &core, Timestamp(1));
    let open = Open {
        n: 1,
        at: Timestamp(1),
        checksum: 0,
        starved: Milli(0),
        vms: 1,
        builtin: 1,
    };
    let mut since = |at, units, note: &str, fault| {
        let record = Answered {
            cu: units,
            note: Some(note.to_owned()),
            fault,
            ..active.plain_record(&open, Timestamp(at))
        };
        active.shows(&record, Timestamp(at));
        active.last.as_ref().expect("it was shown").since.0
    };
    assert_eq!(since(10, Some(2), "a", None), 10);
    assert_eq!(since(11, Some(2), "b", None), 10, "only the note differs");
    assert_eq!(since(12, Some(3), "b", None), 12);
    assert_eq!(since(13, None, "", None), 13, "it holds");
    assert_eq!(since(14, None, "", Some(Fault::Steps)), 14);
    assert_eq!(since(15, None, "", Some(Fault::Steps)), 14);
}
