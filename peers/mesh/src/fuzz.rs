//! What holds for any input, for the fuzzer and for property tests.

use std::collections::BTreeMap;

use crate::keys::Keys;
use crate::published::{CLAIM, INVENTORY, PLAN, PRIORITY, Published, WISHES, decode};
use crate::seal;
use crate::server::read_join;

/// Keys of the values, in the order of the lines of an input.
const KEYS: [&str; 5] = [CLAIM, INVENTORY, PLAN, PRIORITY, WISHES];

/// A datagram that no key has sealed is dropped, and a value of a peer is read or absent. What is
/// read keeps its bounds.
///
/// # Panics
/// A panic is a finding.
pub fn peers_datagram(data: &[u8]) {
    let keys = Keys::from_secrets(&[[1; 32], [2; 32]]).expect("the keys are good");
    assert_eq!(seal::open(&keys, data), None, "nobody guesses a tag");
    let sealed = seal::seal(&keys, data).expect("the machine has random numbers");
    assert_eq!(seal::open(&keys, &sealed).as_deref(), Some(data));
    let text = String::from_utf8_lossy(data);
    let mut pieces = text.split('\n');
    let values: BTreeMap<&str, &str> = KEYS
        .into_iter()
        .filter_map(|key| Some((key, pieces.next()?)))
        .collect();
    let read = Published::read(|key| values.get(key).copied());
    assert!(read.peer.inventory.counts.len() <= crate::MAX_SETS);
    for claim in read
        .peer
        .claim
        .iter()
        .chain(read.plan.iter().map(|plan| &plan.claim))
    {
        let text = serde_json::to_string(claim).expect("it prints");
        assert_eq!(decode(&text).as_ref(), Some(claim));
    }
    if let Ok(request) = read_join(data) {
        assert!(!request.address.ip().is_unspecified());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seed(name: &str) -> String {
        std::fs::read_to_string(format!("../../fuzz/seeds/peers_datagram/{name}")).expect(name)
    }

    #[test]
    fn seeds_hold() {
        test_seeds::hold(&[("peers_datagram", peers_datagram)]);
        let text = seed("values");
        let values: BTreeMap<&str, &str> = KEYS.into_iter().zip(text.lines()).collect();
        let read = Published::read(|key| values.get(key).copied());
        assert!(read.peer.claim.is_some() && read.plan.is_some(), "{read:?}");
        assert_eq!((read.peer.priority, read.wishes.len()), (10, 1));
        let text = seed("bounds");
        let values: BTreeMap<&str, &str> = KEYS.into_iter().zip(text.lines()).collect();
        let read = Published::read(|key| values.get(key).copied());
        assert_eq!(read, Published::read(|_| None), "each value breaks a bound");
        read_join(seed("join").as_bytes()).expect("a request");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Requirement: V23
        #[test]
        fn v23_any_datagram_is_dropped_or_within_bounds(
            data in prop::collection::vec(any::<u8>(), 0..300),
            text in "[{}\":,a-z0-9\n]{0,200}",
        ) {
            peers_datagram(&data);
            peers_datagram(text.as_bytes());
        }
    }
}
