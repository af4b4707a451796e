use proptest::prelude::*;
use serde_json::json;

use super::super::{normalise, validate_create, validate_update};
use super::*;

const KIND: &str = "VirtualMachine";

/// A VM of 1 to 8 CPUs and slots. `Null` leaves a size out.
fn vm(is_autoscaled: bool, cpu: Value, slots: Value) -> Value {
    let mut vm = json!({
        "metadata": {"labels": {LABEL_ENABLED: is_autoscaled.to_string()}},
        "spec": {"guest": {
            "cpus": {"min": 1, "use": cpu, "max": 8},
            "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": slots, "max": 8},
            "rootDisk": {"image": "i"},
        }},
    });
    for part in SIZED {
        let size = at_mut(&mut vm, &format!("spec.guest.{part}")).expect("it");
        let size = size.as_object_mut().expect("an object");
        size.retain(|_, value| !value.is_null());
    }
    vm
}

fn sizes(vm: &Value) -> [&Value; 2] {
    SIZED.map(|part| &vm["spec"]["guest"][part]["use"])
}

#[test]
fn new_vm_without_sizes_starts_at_its_minimum() {
    for is_autoscaled in [false, true] {
        let mut new = vm(is_autoscaled, Value::Null, Value::Null);
        let warnings = settle_size(KIND, None, Writer::Other, &mut new);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(sizes(&new), [&json!(1), &json!(1)]);
        assert_eq!(validate_create(KIND, &new), Ok(()));
        let mut given = vm(is_autoscaled, json!(4), json!(3));
        settle_size(KIND, None, Writer::Other, &mut given);
        assert_eq!(sizes(&given), [&json!(4), &json!(3)]);
    }
}

#[test]
fn size_left_out_of_a_change_stays_as_stored() {
    for is_autoscaled in [false, true] {
        let old = vm(is_autoscaled, json!("4500m"), json!(5));
        let mut new = vm(is_autoscaled, Value::Null, Value::Null);
        let warnings = settle_size(KIND, Some(&old), Writer::Other, &mut new);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(new, old);
        // Clients write null for what they take out.
        new["spec"]["guest"]["cpus"]["use"] = Value::Null;
        settle_size(KIND, Some(&old), Writer::Other, &mut new);
        assert_eq!(new, old);
    }
}

#[test]
fn autoscaled_vm_is_made_smaller_by_its_agent_alone() {
    let old = vm(true, json!(4), json!(4));
    let mut new = vm(true, json!("1500m"), json!(2));
    let warnings = settle_size(KIND, Some(&old), Writer::Other, &mut new);
    assert_eq!(new, old);
    assert!(
        warnings.len() == 2 && warnings[0].contains(".spec.guest.cpus.use stays 4"),
        "{warnings:?}"
    );
    for (is_autoscaled, writer) in [(true, Writer::Agent), (false, Writer::Other)] {
        let wanted = vm(is_autoscaled, json!("1500m"), json!(2));
        let mut new = wanted.clone();
        let old = vm(is_autoscaled, json!(4), json!(4));
        assert_eq!(settle_size(KIND, Some(&old), writer, &mut new).len(), 0);
        assert_eq!(new, wanted, "{writer:?}");
    }
}

#[test]
fn each_size_is_held_by_itself() {
    let old = vm(true, json!(4), json!(4));
    let mut new = vm(true, json!(6), json!(2));
    let warnings = settle_size(KIND, Some(&old), Writer::Other, &mut new);
    assert_eq!(sizes(&new), [&json!(6), &json!(4)]);
    assert!(warnings[0].contains(".spec.guest.memorySlots.use"));
}

/// A change that takes the label off hands the VM back to its user.
#[test]
fn size_is_free_where_the_label_goes() {
    let old = vm(true, json!(4), json!(4));
    let mut new = vm(false, json!(2), json!(2));
    assert_eq!(
        settle_size(KIND, Some(&old), Writer::Other, &mut new).len(),
        0
    );
    assert_eq!(sizes(&new), [&json!(2), &json!(2)]);
}

/// It was stored before there were rules, and must be mendable.
#[test]
fn stored_size_above_its_maximum_gives_way() {
    let old = vm(true, json!(9), json!(4));
    let mut new = vm(true, json!(8), json!(4));
    settle_size(KIND, Some(&old), Writer::Other, &mut new);
    assert_eq!(sizes(&new)[0], 8);
    assert_eq!(validate_update(KIND, &old, &new), Ok(()));
}

#[test]
fn object_that_nothing_settled_is_refused() {
    let (new, old) = (
        vm(true, json!(2), Value::Null),
        vm(true, json!(2), json!(2)),
    );
    let refusals = [
        validate_create(KIND, &new),
        validate_update(KIND, &old, &new),
    ];
    for refusal in refusals {
        let errors = refusal.expect_err("no size");
        assert_eq!(errors[0].field, "spec.guest.memorySlots.use");
    }
}

#[test]
fn agent_is_known_by_account_or_field_manager() {
    let other = "system:serviceaccount:argocd:argocd-application-controller";
    for (account, manager, writer) in [
        (Some(AGENT_ACCOUNT), None, Writer::Agent),
        (Some(other), Some(AGENT_FIELD_MANAGER), Writer::Agent),
        (None, Some(AGENT_FIELD_MANAGER), Writer::Agent),
        (Some(other), Some("argocd-controller"), Writer::Other),
        (None, None, Writer::Other),
    ] {
        assert_eq!(
            Writer::of(account, manager),
            writer,
            "{account:?} {manager:?}"
        );
    }
}

fn size() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        (1_u32..=8).prop_map(Value::from),
        (1_000_u32..=8_000).prop_map(|milli| json!(f64::from(milli) / 1000.0)),
    ]
}

fn whole() -> impl Strategy<Value = Value> {
    prop_oneof![Just(Value::Null), (1_u32..=8).prop_map(Value::from)]
}

proptest! {
    /// Requirement: W6. Whatever a manifest says, applying it takes nothing from an autoscaled VM,
    /// and what it may store is valid.
    #[test]
    fn no_manifest_shrinks_an_autoscaled_vm(
        stored in (1_000_u32..=8_000, 1_i32..=8), cpu in size(), slots in whole(), times in 1..3,
    ) {
        let mut old = vm(true, json!(f64::from(stored.0) / 1000.0), json!(stored.1));
        normalise(KIND, &mut old).expect("in range");
        for _ in 0..times {
            let mut new = vm(true, cpu.clone(), slots.clone());
            normalise(KIND, &mut new).expect("in range");
            settle_size(KIND, Some(&old), Writer::Other, &mut new);
            prop_assert_eq!(validate_update(KIND, &old, &new), Ok(()));
            for (before, after) in sizes(&old).into_iter().zip(sizes(&new)) {
                prop_assert!(amount(after) >= amount(before), "{before} {after}");
            }
            old = new;
        }
    }

    /// A change that says every size behaves as it did before sizes could be left out, wherever the
    /// label is off.
    #[test]
    fn given_sizes_are_taken_as_given_without_the_label(
        stored in (1_u32..=8, 1_u32..=8), given in (1_u32..=8, 1_u32..=8), is_new: bool,
    ) {
        let old = vm(false, json!(stored.0), json!(stored.1));
        let mut new = vm(false, json!(given.0), json!(given.1));
        let wanted = new.clone();
        let warnings = settle_size(KIND, (!is_new).then_some(&old), Writer::Other, &mut new);
        prop_assert!(warnings.is_empty());
        prop_assert_eq!(new, wanted);
    }
}
