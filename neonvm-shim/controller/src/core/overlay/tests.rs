use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use proptest::prelude::*;
use protocol::time::{Span, Timestamp};
use protocol::vm::IpAllocation;
use serde_json::{Value, json};

use super::*;

type Allocations = BTreeMap<String, IpAllocation>;

fn overlay(ipam: &Value) -> Result<Overlay, ConfigError> {
    let config = json!({"cniVersion": "0.3.1", "name": "overlay", "ipam": ipam});
    Overlay::read("neonvm-system", &config.to_string())
}

fn range(cidr: &str) -> Range {
    let mut overlay = overlay(&json!({"range": cidr})).expect("a range");
    overlay.ranges.remove(0)
}

fn holder(id: &str, uid: &str) -> Holder {
    Holder {
        id: id.into(),
        uid: uid.into(),
    }
}

/// A merge patch on the allocations.
fn merge(allocations: &mut Allocations, change: &Value) {
    for (offset, by) in change.as_object().expect("members") {
        match serde_json::from_value(by.clone()).expect("an allocation or null") {
            Some(by) => allocations.insert(offset.clone(), by),
            None => allocations.remove(offset),
        };
    }
}

fn take(range: &Range, allocations: &mut Allocations, holder: &Holder) -> Option<Ipv4Addr> {
    match claim(range, allocations, holder) {
        Claim::Held(address) => Some(address),
        Claim::Take { address, change } => {
            merge(allocations, &change);
            Some(address)
        }
        Claim::Full => None,
    }
}

fn give_back(allocations: &mut Allocations, holder: &Holder) -> bool {
    let change = release(allocations, holder);
    change.is_some_and(|change| {
        merge(allocations, &change);
        true
    })
}

#[test]
fn shipped_configuration_and_older_form_are_read() {
    let new = overlay(&json!({
        "network_name": "neonvm", "type": "whereabouts",
        "ipRanges": [{"range": "10.100.0.0/16", "range_start": "10.100.128.0", "exclude": ["10.100.128.0/24"]}],
    }))
    .expect("reads");
    assert_eq!(new.ranges[0].pool, "neonvm-10.100.0.0-16");
    assert_eq!(new.ranges[0].mask(), Ipv4Addr::new(255, 255, 0, 0));
    let mut none = Allocations::new();
    let first = take(&new.ranges[0], &mut none, &holder("default/a", "1"));
    assert_eq!(first, Some(Ipv4Addr::new(10, 100, 129, 0)));
    assert_eq!(
        serde_json::to_value(&none).expect("encodes"),
        json!({"33024": {"id": "default/a", "podref": "1"}}),
        "offsets count from the range's first address"
    );
    let old = overlay(&json!({"range": "10.100.0.5/30"})).expect("reads");
    let range = &old.ranges[0];
    assert_eq!((range.pool.as_str(), range.prefix), ("10.100.0.5-30", 30));
    assert_eq!(Ipv4Addr::from(range.base), Ipv4Addr::new(10, 100, 0, 4));
}

#[test]
fn unusable_configuration_is_refused_with_reason() {
    for (ipam, words) in [
        (json!({}), "it has 0 ranges"),
        (json!({"range": "10.0.0/8"}), "is no range"),
        (json!({"range": "10.0.0.0/33"}), "is no range"),
        (json!({"range": "fd00::/64"}), "is no range"),
        (
            json!({"range": "10.0.0.0/24", "exclude": ["x"]}),
            "is no range",
        ),
        (
            json!({"range": "10.0.0.0/24", "range_start": "10.0.1.1"}),
            "is not inside",
        ),
        (
            json!({"range": "10.0.0.0/24", "range_start": "10.0.0.9", "range_end": "10.0.0.8"}),
            "is not inside",
        ),
    ] {
        let error = overlay(&ipam).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(Overlay::read("n", "{}").is_err());
}

#[test]
fn vm_gets_lowest_free_address_or_the_one_it_holds() {
    let range = range("10.0.0.0/29");
    let mut all = Allocations::new();
    let at = |last: u8| Some(Ipv4Addr::new(10, 0, 0, last));
    let (a, b, c) = (holder("d/a", "1"), holder("d/b", "2"), holder("d/c", "3"));
    assert_eq!(take(&range, &mut all, &a), at(1));
    assert_eq!(take(&range, &mut all, &a), at(1));
    assert_eq!(take(&range, &mut all, &b), at(2));
    assert!(give_back(&mut all, &a));
    assert!(!give_back(&mut all, &a), "once more is no error");
    assert_eq!(take(&range, &mut all, &c), at(1), "used again");
    for name in ["e", "f", "g", "h"] {
        assert!(take(&range, &mut all, &holder(name, name)).is_some());
    }
    assert_eq!(claim(&range, &all, &a), Claim::Full, "six addresses");
    assert_eq!(take(&range, &mut all, &b), at(2), "who holds one keeps it");
}

#[test]
fn a_vm_of_the_same_name_takes_over_in_writing_and_nobody_gives_its_address_back() {
    let range = range("10.0.0.0/24");
    let mut all = Allocations::new();
    let (old, new) = (holder("d/a", "1"), holder("d/a", "2"));
    let first = take(&range, &mut all, &old);
    assert!(matches!(claim(&range, &all, &new), Claim::Take { .. }));
    assert_eq!(take(&range, &mut all, &new), first);
    assert!(!give_back(&mut all, &old), "late, for the one before");
    assert!(matches!(claim(&range, &all, &new), Claim::Held(_)));
    // As another controller made it: without a uid.
    all.insert(
        "9".into(),
        IpAllocation {
            id: "d/z".into(),
            podref: None,
        },
    );
    assert!(give_back(&mut all, &holder("d/z", "7")));
}

#[test]
fn address_of_missing_vm_is_taken_back_after_grace() {
    let mut all = Allocations::new();
    let range = range("10.0.0.0/24");
    for (id, uid) in [("d/here", "1"), ("d/gone", "2")] {
        take(&range, &mut all, &holder(id, uid));
    }
    let mut leaks = Leaks::default();
    let begin = Timestamp(1_000_000);
    let known = |id: &str| id == "d/here";
    assert_eq!(leaks.look("p", &all, known, GRACE, begin), []);
    let before = begin + GRACE - Span::from_secs(1);
    assert_eq!(leaks.look("p", &all, known, GRACE, before), []);
    assert_eq!(
        leaks.look("p", &all, known, GRACE, begin + GRACE),
        [holder("d/gone", "2")]
    );
    // Seen again meanwhile: its time begins anew.
    assert_eq!(leaks.look("p", &all, |_| true, GRACE, begin + GRACE), []);
    assert_eq!(leaks.look("p", &all, known, GRACE, begin + GRACE), []);
    // Another one of its name: its own time.
    take(&range, &mut all, &holder("d/gone", "3"));
    let later = begin + GRACE + GRACE;
    assert_eq!(leaks.look("p", &all, known, GRACE, later), []);
}

/// What can happen between two controllers and one pool.
#[derive(Debug, Clone)]
enum Happening {
    /// A controller reads the pool to give a VM an address, or to take it back.
    Reads { who: usize, vm: usize, gives: bool },
    /// It writes what it decided, on the version it read.
    Writes { who: usize },
    /// It is killed: what it read is lost.
    Dies { who: usize },
    /// A VM goes without giving anything back, and another of its name comes.
    Replaced { vm: usize },
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0_usize..2, 0_usize..5, any::<bool>()).prop_map(|(who, vm, gives)| Happening::Reads {
            who,
            vm,
            gives
        }),
        (0_usize..2).prop_map(|who| Happening::Writes { who }),
        (0_usize..2).prop_map(|who| Happening::Writes { who }),
        (0_usize..2).prop_map(|who| Happening::Dies { who }),
        (0_usize..5).prop_map(|vm| Happening::Replaced { vm }),
    ]
}

#[derive(Debug, Clone)]
struct Intent {
    version: u32,
    change: Option<Value>,
    holder: Holder,
    address: Option<Ipv4Addr>,
}

proptest! {
    #[test]
    fn no_address_twice_whoever_is_interrupted(
        happenings in prop::collection::vec(happening(), 1..120),
    ) {
        // Fewer addresses than VMs, so that they are used again.
        let range = range("10.0.0.0/30");
        let (mut pool, mut version) = (Allocations::new(), 0_u32);
        let mut uids = [0_u32; 5];
        // A VM that is being deleted asks for nothing any more.
        let mut leaves = [false; 5];
        let mut intents: [Option<Intent>; 2] = [None, None];
        // What a VM that lives was told it has.
        let mut told: BTreeMap<usize, Ipv4Addr> = BTreeMap::new();
        for happening in happenings {
            match happening {
                Happening::Reads { vm, gives: true, .. } if leaves[vm] => {}
                Happening::Reads { who, vm, gives } => {
                    let holder = holder(&format!("d/{vm}"), &uids[vm].to_string());
                    let (change, address) = if gives {
                        match claim(&range, &pool, &holder) {
                            Claim::Held(address) => (None, Some(address)),
                            Claim::Take { address, change } => (Some(change), Some(address)),
                            Claim::Full => continue,
                        }
                    } else {
                        leaves[vm] = true;
                        told.remove(&vm);
                        (release(&pool, &holder), None)
                    };
                    intents[who] = Some(Intent { version, change, holder, address });
                }
                Happening::Writes { who } => {
                    let Some(intent) = intents[who].take() else { continue };
                    if let Some(change) = &intent.change {
                        if intent.version != version {
                            continue;
                        }
                        merge(&mut pool, change);
                        version += 1;
                    }
                    let vm: usize = intent.holder.id[2..].parse().expect("a number");
                    let lives = !leaves[vm] && intent.holder.uid == uids[vm].to_string();
                    // Nothing to write is an answer only as long as what was read still holds.
                    if let (Some(address), true, true) = (intent.address, lives, intent.version == version || intent.change.is_some()) {
                        told.insert(vm, address);
                    }
                }
                Happening::Dies { who } => intents[who] = None,
                Happening::Replaced { vm } => {
                    uids[vm] += 1;
                    leaves[vm] = false;
                    told.remove(&vm);
                }
            }
            for (offset, by) in &pool {
                let offset: u32 = offset.parse().expect("a number");
                prop_assert!((1..=2).contains(&offset));
                let same = pool.values().filter(|other| other.id == by.id).count();
                prop_assert_eq!(same, 1, "one address for each");
            }
            let mut addresses: Vec<&Ipv4Addr> = told.values().collect();
            addresses.sort_unstable();
            let all = addresses.len();
            addresses.dedup();
            prop_assert_eq!(addresses.len(), all, "held twice: {:?}", told);
        }
    }
}
