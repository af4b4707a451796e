//! The fuzzer's bodies under proptest, and with the fuzzer's seeds.

use proptest::prelude::*;
use serde_json::{Value, json};
use test_seeds::Body;

use super::*;

const SEEDS: &str = "../../fuzz/seeds";

#[test]
fn every_seed_of_the_runner_holds() {
    let bodies: [Body<'static>; 2] = [
        ("dhcp_packet", dhcp_packet),
        ("transfer_manifest", transfer_manifest),
    ];
    test_seeds::hold(&bodies);
}

#[test]
fn seed_of_an_arrival_is_one() {
    let text = std::fs::read(format!("{SEEDS}/transfer_manifest/arrival")).expect("a seed");
    serde_json::from_slice::<Arrival>(&text[1..]).expect("an arrival");
}

fn described() -> Value {
    let text = std::fs::read(format!("{SEEDS}/transfer_manifest/guest")).expect("a seed");
    serde_json::from_slice(&text).expect("JSON")
}

/// A compromised runner describes a CPU, a machine, an address or a drive by more than one value.
#[test]
fn description_that_is_more_than_one_value_for_qemu_is_refused() {
    let check = |description: &Value| {
        let manifest: Manifest = serde_json::from_value(description.clone()).expect("read");
        manifest.check()
    };
    assert_eq!(check(&described()), Ok(()));
    let cpu = |driver: &str, id: &str, prop: &str| json!([{"driver": driver, "id": id, "props": {prop: 1}}]);
    let drive = |id: &str| json!([{"drive": {"id": id, "kind": "blocks"}, "path": "/p", "device": 1, "inode": 1}]);
    for (member, value) in [
        ("cpus", cpu("vfio-pci,host=0000:00:02.0", "cpu1", "core-id")),
        ("cpus", cpu("host-x86_64-cpu", "cpu1,drive=root", "core-id")),
        ("cpus", cpu("host-x86_64-cpu", "cpu1", "core-id=0,drive")),
        ("machine", json!("q35,dumpdtb=/etc/passwd")),
        ("mac", json!("52:54:00:00:00:01,romfile=/etc/shadow")),
        ("overlay_mac", json!("52:54:00:00:00:01,x=y")),
        ("drives", drive("../../other/root")),
        ("drives", drive("d,file=/dev/sda")),
        ("drives", drive("")),
    ] {
        let mut description = described();
        description[member] = value.clone();
        let refusal = check(&description).expect_err("refused").to_string();
        assert!(refusal.contains(member), "{refusal}");
        transfer_manifest(description.to_string().as_bytes());
    }
}

/// A manifest with one member, at any depth, set to any value.
fn any_description() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        any::<u64>().prop_map(Value::from),
        "[a-z0-9,=/.:]{0,12}".prop_map(Value::from),
    ];
    (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        value,
    )
        .prop_map(|(outer, inner, value)| {
            let mut description = described();
            let members = description.as_object_mut().expect("an object");
            let at = outer.index(members.len());
            let member = members.values_mut().nth(at).expect("a member");
            match member {
                Value::Object(members) if !members.is_empty() => {
                    let at = inner.index(members.len());
                    *members.values_mut().nth(at).expect("a member") = value;
                }
                member => *member = value,
            }
            description.to_string()
        })
}

proptest! {
    #[test]
    fn descriptions_hold(description in any_description(), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        transfer_manifest(description.as_bytes());
        transfer_manifest(&bytes);
    }

    #[test]
    fn packets_hold(seed in 0_usize..2, options in prop::collection::vec(any::<u8>(), 0..300), at in 0_usize..240, byte: u8) {
        let name = ["discover", "request"][seed];
        let mut packet = std::fs::read(format!("{SEEDS}/dhcp_packet/{name}")).expect("a seed");
        packet.truncate(243);
        packet.extend(options);
        dhcp_packet(&packet);
        packet[at] = byte;
        dhcp_packet(&packet);
    }
}
