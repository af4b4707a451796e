//! Properties of migration manifests and of DHCP packets, as bodies for the coverage-guided fuzzer
//! of `fuzz/` and for property tests.

#![expect(
    clippy::missing_panics_doc,
    reason = "to panic is what these are for: a panic is a finding"
)]

use std::path::{Component, Path};

use smoltcp::wire::{DhcpMessageType, DhcpPacket, DhcpRepr};

use crate::config::Resolver;
use crate::core::bridge::GUEST;
use crate::core::dhcp::Lease;
use crate::core::transfer::{Arrival, Manifest};

const MAC: &str = "52:54:00:f4:01:09";
/// Largest DHCP answer in bytes that every client accepts.
const MAX_ANSWER_BYTES: usize = 576;

/// A migration manifest from another runner or, with a first byte of 0, from this runner's record.
/// A manifest that is read prints as a text that reads as the same. No field of an accepted
/// manifest is more than one value on QEMU's command line, and no path leaves the runner's
/// directory.
pub fn transfer_manifest(data: &[u8]) {
    if let Some(text) = data.strip_prefix(&[0]) {
        let Ok(arrival) = serde_json::from_slice::<Arrival>(text) else {
            return;
        };
        let again = serde_json::to_vec(&arrival).expect("it prints");
        let read: Arrival = serde_json::from_slice(&again).expect("it reads");
        assert_eq!(read, arrival);
        return;
    }
    let Ok(manifest) = serde_json::from_slice::<Manifest>(data) else {
        return;
    };
    let again = serde_json::to_vec(&manifest).expect("it prints");
    let read: Manifest = serde_json::from_slice(&again).expect("it reads");
    assert_eq!(read, manifest);
    if let Err(refusal) = manifest.check() {
        assert!(!refusal.to_string().is_empty());
        return;
    }
    for cpu in &manifest.cpus {
        let device = cpu.device();
        assert_eq!(device.split(',').count(), 2 + cpu.props.len(), "{device}");
    }
    let values = [
        Some(&manifest.machine),
        Some(&manifest.mac),
        manifest.overlay_mac.as_ref(),
    ];
    for value in values.into_iter().flatten() {
        assert!(!value.contains([',', '=', '/', ' ']), "{value:?}");
    }
    for there in &manifest.drives {
        let file = there.drive.file();
        let parts: Vec<_> = Path::new(&file).components().collect();
        assert!(
            matches!(parts.as_slice(), [Component::Normal(_)]),
            "{file:?}"
        );
    }
}

/// A DHCP request of a guest. An answer is a packet that every client accepts, goes to our guest
/// alone, answers this request, and gives no address but the guest's.
pub fn dhcp_packet(data: &[u8]) {
    let lease = Lease {
        mac: MAC.to_owned(),
        resolver: Resolver::of("nameserver 10.96.0.10\nsearch b.c a\n"),
    };
    let Some(answer) = lease.answer(data) else {
        return;
    };
    assert!(answer.len() <= MAX_ANSWER_BYTES, "{} bytes", answer.len());
    let question = DhcpPacket::new_checked(data).expect("it was read");
    let answer = DhcpPacket::new_checked(answer.as_slice()).expect("a packet");
    let answer = DhcpRepr::parse(&answer).expect("of DHCP");
    assert_eq!(answer.transaction_id, question.transaction_id());
    assert_eq!(
        answer.client_hardware_address.to_string().replace('-', ":"),
        MAC
    );
    let is_given = answer.your_ip == GUEST;
    assert!(is_given || answer.your_ip.is_unspecified(), "{answer:?}");
    let kinds = [
        DhcpMessageType::Offer,
        DhcpMessageType::Ack,
        DhcpMessageType::Nak,
    ];
    assert!(kinds.contains(&answer.message_type), "{answer:?}");
    assert!(
        !is_given || answer.message_type != DhcpMessageType::Nak,
        "{answer:?}"
    );
}

#[cfg(test)]
mod tests;
