//! Words of tenants and callers that must take no more of a node than the VM they speak of could
//! use.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::core::ledger::GrantHold;
use crate::core::view::VmView;
use protocol::permit::NamespacedName;

const GIB: u64 = 1 << 30;

/// A node `n` of 2 CPU and 6 GiB under the configuration that ships.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new(Config::default().settings(true, true).rules);
    ledger.node_applied(node(json!({}), "2", "6Gi"));
    ledger
}

fn node(labels: Value, cpu: &str, memory: &str) -> NodeView {
    let node = json!({"metadata": {"name": "n", "uid": "n", "labels": labels},
        "status": {"allocatable": {"cpu": cpu, "memory": memory}}});
    NodeView::read(&node).expect("has a name")
}

/// What a tenant or a caller may write about a VM of at most `max` units of 1 CPU and 1 GiB.
#[derive(Debug, Clone)]
struct Words {
    max: u64,
    in_use: u64,
    approved: Option<Resources>,
    plugged: u64,
    overcommit: String,
    pod_approved: Option<Resources>,
    pod_max: u64,
    namespace: &'static str,
}

impl Default for Words {
    fn default() -> Self {
        Self {
            max: 4,
            in_use: 1,
            approved: None,
            plugged: 0,
            overcommit: "{}".into(),
            pod_approved: None,
            pod_max: 4,
            namespace: "d",
        }
    }
}

fn units(units: u64) -> Resources {
    Resources::new(
        u32::try_from(units * 1000).unwrap_or(u32::MAX),
        units.saturating_mul(GIB),
    )
}

impl Words {
    fn key(&self) -> NamespacedName {
        NamespacedName {
            namespace: self.namespace.into(),
            name: "pg".into(),
        }
    }

    fn guest(&self, max: u64) -> Value {
        json!({"cpus": {"min": 1, "max": max, "use": self.in_use}, "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "max": max, "use": self.in_use}})
    }

    fn vm(&self, version: u64) -> VmView {
        let mut vm = json!({
            "metadata": {"name": "pg", "namespace": self.namespace, "uid": "v", "annotations": {},
                "resourceVersion": version.to_string(), "labels": {"autoscaling.neon.tech/enabled": "true"}},
            "spec": {"guest": self.guest(self.max)},
            "status": {"podName": "pg-1", "cpus": self.plugged, "memorySize": format!("{}Gi", self.plugged)}});
        if let Some(approved) = self.approved {
            vm["metadata"]["annotations"]["internal.autoscaling.neon.tech/resources-approved"] =
                json!(json!(approved).to_string());
        }
        VmView::read_text(&vm.to_string()).expect("has a name")
    }

    fn pod(&self) -> PodView {
        let mut annotations = json!({"vm.neon.tech/resources": self.guest(self.pod_max).to_string(),
            "vm.neon.tech/overcommit": self.overcommit});
        if let Some(approved) = self.pod_approved {
            annotations["internal.autoscaling.neon.tech/resources-approved"] =
                json!(json!(approved).to_string());
        }
        let pod = json!({"metadata": {"name": "pg-1", "namespace": self.namespace, "uid": "p",
                "annotations": annotations, "labels": {"autoscaling.neon.tech/enabled": "true"},
                "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pg", "uid": "v"}]},
            "spec": {"nodeName": "n", "schedulerName": "autoscale-scheduler"}});
        PodView::read(&pod).expect("has a name")
    }
}

fn after(words: &Words) -> Ledger {
    let mut ledger = ledger();
    ledger.pod_applied(words.pod());
    ledger.vm_observed(words.vm(5));
    ledger
}

fn reserved(ledger: &Ledger) -> (u128, u128) {
    let load = ledger.load("n");
    (load.reserved.cpu, load.reserved.mem / u128::from(GIB))
}

#[test]
fn approved_annotation_above_the_largest_size_counts_that_size_and_is_an_anomaly() {
    let mut words = Words {
        max: 1,
        pod_max: 1,
        approved: Some(Resources::new(1_000_000, 4000 * GIB)),
        ..Words::default()
    };
    let mut ledger = after(&words);
    assert_eq!(reserved(&ledger), (1_000, 1));
    assert_eq!(ledger.anomalies().approved_above_max, 1);
    // The same annotation in a later state is the same anomaly; a pod's copy is no other.
    ledger.vm_observed(words.vm(6));
    words.pod_approved = words.approved;
    ledger.pod_applied(words.pod());
    assert_eq!(reserved(&ledger), (1_000, 1));
    assert_eq!(ledger.anomalies().approved_above_max, 1);
    assert_eq!(ledger.audit(), Ok(()));
}

#[test]
fn use_raised_by_hand_reserves_no_more_than_the_largest_size_and_the_node() {
    let small = Words {
        max: 3,
        in_use: 512,
        ..Words::default()
    };
    assert_eq!(reserved(&after(&small)), (2_000, 3), "the largest size");
    let large = Words {
        max: 512,
        pod_max: 512,
        in_use: 512,
        ..Words::default()
    };
    let mut ledger = after(&large);
    assert_eq!(reserved(&ledger), (2_000, 6), "what the node has");
    // The bound goes by the node as it is now.
    ledger.node_applied(node(json!({}), "4", "8Gi"));
    assert_eq!(reserved(&ledger), (4_000, 8));
    assert_eq!(ledger.audit(), Ok(()));
    ledger.node_deleted("n");
    assert_eq!(reserved(&ledger), (512_000, 512));
    assert_eq!(ledger.audit(), Ok(()));
}

#[test]
fn use_above_what_was_permitted_is_counted_up_to_the_largest_size() {
    let words = Words {
        in_use: 2,
        approved: Some(units(1)),
        ..Words::default()
    };
    assert_eq!(reserved(&after(&words)), (2_000, 2));
}

#[test]
fn overcommit_of_a_thousand_does_not_put_64_gib_on_a_node_of_6() {
    let words = Words {
        max: 64,
        pod_max: 64,
        in_use: 64,
        overcommit: r#"{"cpu":"1000","memory":"1000"}"#.into(),
        ..Words::default()
    };
    let pod = PodView {
        node: None,
        ..words.pod()
    };
    let ledger = ledger();
    assert!(matches!(
        ledger.fits(&pod, "n"),
        crate::core::ledger::Fit::NoRoom(_)
    ));
    assert!(ledger.is_overcommit_bounded(&pod));
    assert_eq!(ledger.factors(&pod, "n"), Both::new(16_000, 4_000));
}

#[test]
fn ordinary_overcommit_counts_as_in_the_deployed_scheduler() {
    for (text, expected) in [
        (r#"{"cpu":"2500m","memory":1.5}"#, Both::new(2_500, 1_500)),
        (r#"{"cpu":"500m"}"#, Both::new(500, 1_000)),
        ("{}", Both::new(1_000, 1_000)),
    ] {
        let words = Words {
            overcommit: text.into(),
            ..Words::default()
        };
        let pod = words.pod();
        let ledger = ledger();
        assert_eq!(ledger.factors(&pod, "n"), expected, "{text}");
        assert!(!ledger.is_overcommit_bounded(&pod));
    }
}

#[test]
fn namespace_may_allow_more_overcommit_and_a_node_only_less() {
    let mut rules = Config::default().settings(true, true).rules;
    let bounds = json!({"max": {"cpu": 2, "memory": 1}, "namespaces": {"d": {"memory": 8}}});
    rules.overcommit = serde_json::from_value(bounds).expect("is valid");
    let mut ledger = Ledger::new(rules);
    let labels = json!({"autoscaling.neon.tech/max-overcommit-memory": "3",
        "autoscaling.neon.tech/max-overcommit-cpu": "100"});
    ledger.node_applied(node(labels, "2", "6Gi"));
    let words = |namespace| Words {
        overcommit: r#"{"cpu":"1000","memory":"1000"}"#.into(),
        in_use: 3,
        namespace,
        ..Words::default()
    };
    let factors = |ledger: &Ledger, namespace, node| ledger.factors(&words(namespace).pod(), node);
    assert_eq!(factors(&ledger, "d", "other"), Both::new(2_000, 8_000));
    assert_eq!(factors(&ledger, "d", "n"), Both::new(2_000, 3_000));
    assert_eq!(factors(&ledger, "e", "n"), Both::new(2_000, 1_000));
    // Labels that change are counted at once.
    ledger.pod_applied(words("d").pod());
    assert_eq!(reserved(&ledger), (1_500, 1));
    ledger.node_applied(node(
        json!({"autoscaling.neon.tech/max-overcommit-memory": "1"}),
        "2",
        "6Gi",
    ));
    assert_eq!(reserved(&ledger), (1_500, 3));
    assert_eq!(ledger.audit(), Ok(()));
}

/// A tenant's `podResources` of 4 GiB with a factor of 1000 is not a report of 4,000 GiB in use.
#[test]
fn request_of_a_runner_with_a_huge_factor_counts_the_largest_size() {
    let words = Words {
        overcommit: r#"{"memory":"1000"}"#.into(),
        ..Words::default()
    };
    let mut ledger = ledger();
    let mut pod = words.pod();
    pod.announced = Resources::new(1_000, 4_000 * GIB);
    pod.runner_requests = Resources::new(100, 5 * GIB);
    ledger.pod_applied(pod.clone());
    ledger.vm_observed(words.vm(5));
    let counted = ledger.counted(&pod);
    assert_eq!(
        counted,
        Resources::new(1_000, 5 * GIB),
        "what kubelet keeps for it"
    );
}

#[test]
fn reserved_for_a_pod_is_no_less_than_it_requests() {
    let words = Words {
        overcommit: r#"{"memory":"4"}"#.into(),
        ..Words::default()
    };
    let mut ledger = ledger();
    let mut pod = words.pod();
    pod.announced = Resources::new(1_000, 20 * GIB);
    pod.runner_requests = Resources::new(100, 5 * GIB);
    ledger.pod_applied(pod);
    ledger.vm_observed(words.vm(5));
    assert_eq!(reserved(&ledger), (1_000, 5), "not a quarter of it");
    assert_eq!(ledger.audit(), Ok(()));
}

/// A VM was deleted, and another of its name is smaller: the guest of the first runs until its pod
/// is gone.
#[test]
fn pod_of_a_deleted_vm_is_not_cut_to_the_size_of_its_namesake() {
    let first = Words {
        in_use: 4,
        ..Words::default()
    };
    let mut ledger = after(&first);
    ledger.vm_deleted(&first.key(), "v");
    let mut namesake = Words {
        max: 1,
        ..Words::default()
    }
    .vm(9);
    namesake.uid = "v2".into();
    ledger.vm_observed(namesake);
    assert_eq!(ledger.counted(&first.pod()), units(4));
    assert_eq!(ledger.audit(), Ok(()));
}

/// The same for a scheduler that began after both: only the pod tells it what the first guest has.
#[test]
fn new_scheduler_does_not_cut_a_pod_to_the_size_of_its_vms_namesake() {
    let first = Words {
        in_use: 4,
        ..Words::default()
    };
    let mut namesake = Words {
        max: 1,
        ..Words::default()
    }
    .vm(9);
    namesake.uid = "v2".into();
    let mut ledger = ledger();
    ledger.pod_applied(first.pod());
    ledger.vm_observed(namesake);
    assert_eq!(ledger.counted(&first.pod()), units(4));
    assert_eq!(ledger.audit(), Ok(()));
}

fn any_size() -> impl Strategy<Value = Resources> {
    let milli = prop_oneof![0..20_000_u32, any::<u32>()];
    let mem = prop_oneof![0..20 * GIB, 0..1_u64 << 50];
    (milli, mem).prop_map(|(milli, mem)| Resources::new(milli, mem))
}

fn words() -> impl Strategy<Value = Words> {
    let factor = prop_oneof![
        Just("{}".to_owned()),
        Just(r#"{"memory":"1.5"}"#.to_owned()),
        (1..100_000_u32).prop_map(|f| format!(r#"{{"cpu":"{f}m","memory":"{f}"}}"#)),
        Just("{".to_owned()),
    ];
    let pod = (prop::option::of(any_size()), 1..1000_u64);
    let use_and_plugged = (0..1000_u64, 0..1000_u64);
    (
        1..16_u64,
        use_and_plugged,
        prop::option::of(any_size()),
        factor,
        pod,
    )
        .prop_map(
            |(max, (in_use, plugged), approved, overcommit, (pod_approved, pod_max))| Words {
                max,
                in_use,
                approved,
                plugged,
                overcommit,
                pod_approved,
                pod_max,
                namespace: "d",
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Requirement: W6. Whatever is written of a VM, in whatever order: it is counted at no more
    /// than its largest size and takes no more than the node; and it is never counted at less than
    /// what its guest may use.
    #[test]
    fn no_words_count_a_vm_above_its_largest_size_or_below_its_use(
        states in prop::collection::vec(words(), 1..4), max in 1..16_u64,
        claim in prop::option::of(any_size()), target in prop::option::of(any_size()),
    ) {
        let mut ledger = ledger();
        for (version, mut words) in (5..).zip(states) {
            words.max = max;
            ledger.pod_applied(words.pod());
            ledger.vm_observed(words.vm(version));
            ledger.set_claim(&words.key(), claim);
            if let Some(target) = target {
                ledger.add_hold(&words.key(), GrantHold { base: version, target });
            }
            let pod = words.pod();
            let counted = ledger.counted(&pod);
            prop_assert!(!counted.has_field_above(units(max)), "{counted}");
            let used = units(words.in_use).field_min(units(max));
            let approved = words.approved.map_or(used, |it| it.field_min(units(max)));
            prop_assert!(!counted.has_field_below(used.field_max(approved)), "{counted}");
            let load = ledger.load("n").reserved;
            prop_assert!(load.cpu <= 2_000 && load.mem <= u128::from(6 * GIB));
            let factors = ledger.factors(&pod, "n");
            prop_assert!(factors.cpu <= 16_000 && factors.mem <= 4_000);
            prop_assert_eq!(ledger.audit(), Ok(()));
        }
    }
}
