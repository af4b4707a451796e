//! A guest's interface in the overlay network (docs/compatibility/neonvm.md §3.4).
//!
//! ```text
//!  pod:  net1 ──┐                          guest:  eth1  extraNetIP
//!  (multus)     ├── br-overlay ── tap-overlay ─── QEMU
//! ```
//!
//! The pod's interface loses its own addresses and becomes a port of the bridge; the guest's device
//! is the other port. The guest has its address from the words `ip=…:eth1:off` of its kernel's
//! command line.
//!
//! The device's hardware address is derived from its overlay address, which is unique there. So ARP
//! caches of peers stay valid when a guest migrates or restarts.

use std::net::Ipv4Addr;

use protocol::vm::{VmSpec, VmStatus};
use serde_json::Value;

use crate::config::OverlayNic;

/// Name of the bridge between the pod's interface and the guest's.
pub const BRIDGE: &str = "br-overlay";
/// Name of the guest's end of the bridge, made by QEMU.
pub const TAP: &str = "tap-overlay";
/// The pod's interface unless `spec.extraNetwork.interface` says otherwise.
pub const INTERFACE: &str = "net1";
const GUEST_DEVICE: &str = "eth1";
/// Longest name of an interface, `IFNAMSIZ` less its terminator.
const MAX_NAME_BYTES: usize = 15;

/// Errors of a guest's interface in the overlay.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverlayProblem {
    /// `spec.extraNetwork.interface` is not a valid interface name.
    #[error(
        "spec.extraNetwork.interface: {0:?} is not the name of an interface a pod may give away: at most {MAX_NAME_BYTES} letters, \
         digits and .-_, and not lo, eth0, {BRIDGE} or {TAP}"
    )]
    Interface(String),
    /// The address or its mask is not IPv4.
    #[error(
        "status.extraNetIP and extraNetMask: {0:?} and {1:?} are not an IPv4 address and its mask"
    )]
    Address(String, String),
}

/// The guest's interface in the overlay, from spec and status. `None` where the spec asks for none,
/// or the controller has not assigned an address.
///
/// # Errors
/// [`OverlayProblem`].
pub fn nic(spec: &VmSpec, status: &VmStatus) -> Result<Option<OverlayNic>, OverlayProblem> {
    if !is_wanted(spec) || status.extra_net_ip.is_empty() {
        return Ok(None);
    }
    let extra = spec.extra_network.as_ref();
    let interface = extra
        .and_then(|extra| extra.get("interface"))
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
        .unwrap_or(INTERFACE);
    if !may_be_given_away(interface) {
        let name = interface.chars().take(2 * MAX_NAME_BYTES).collect();
        return Err(OverlayProblem::Interface(name));
    }
    let (address, mask) = (&status.extra_net_ip, &status.extra_net_mask);
    let wrong = || OverlayProblem::Address(address.clone(), mask.clone());
    let read = |text: &String| text.parse::<Ipv4Addr>().map_err(|_| wrong());
    let (address, mask) = (read(address)?, read(mask)?);
    let ones = mask.to_bits().leading_ones();
    if ones == 0 || ones + mask.to_bits().trailing_zeros() != u32::BITS {
        return Err(wrong());
    }
    Ok(Some(OverlayNic {
        interface: interface.to_owned(),
        address,
        mask,
    }))
}

/// Whether the spec asks for an overlay interface.
#[must_use]
pub fn is_wanted(spec: &VmSpec) -> bool {
    let extra = spec.extra_network.as_ref();
    let enable = extra.and_then(|extra| extra.get("enable"));
    enable.and_then(Value::as_bool) == Some(true)
}

fn may_be_given_away(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_name = !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(is_part);
    is_name && !["lo", "eth0", ".", "..", BRIDGE, TAP].contains(&name)
}

/// Hardware address of the guest's device: locally administered, and as unique in the overlay as
/// the address.
#[must_use]
pub fn mac(nic: &OverlayNic) -> String {
    let [a, b, c, d] = nic.address.octets();
    format!("52:54:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Kernel command line word of the device: address, mask, host name, device, and no
/// autoconfiguration.
#[must_use]
pub fn kernel_word(nic: &OverlayNic, pod: &str) -> String {
    let OverlayNic { address, mask, .. } = nic;
    format!("ip={address}:::{mask}:{pod}:{GUEST_DEVICE}:off")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn of(extra: Value, address: &str, mask: &str) -> Result<Option<OverlayNic>, OverlayProblem> {
        let spec = VmSpec {
            extra_network: Some(extra),
            ..VmSpec::default()
        };
        let status = VmStatus {
            extra_net_ip: address.to_owned(),
            extra_net_mask: mask.to_owned(),
            ..VmStatus::default()
        };
        nic(&spec, &status)
    }

    #[test]
    fn guest_has_the_address_of_its_status_on_the_interface_of_its_spec() {
        let on = json!({"enable": true});
        let nic = of(on.clone(), "10.100.128.1", "255.255.0.0")
            .expect("sound")
            .expect("one");
        assert_eq!(nic.interface, "net1");
        assert_eq!(mac(&nic), "52:54:0a:64:80:01");
        assert_eq!(
            kernel_word(&nic, "pg-x7k2p"),
            "ip=10.100.128.1:::255.255.0.0:pg-x7k2p:eth1:off"
        );
        let named = json!({"enable": true, "interface": "overlay0"});
        let nic = of(named, "10.100.128.1", "255.255.255.255");
        assert_eq!(nic.expect("sound").expect("one").interface, "overlay0");
        // Switched off, not set, or without an address.
        for extra in [json!({"enable": false}), json!({}), json!(null)] {
            assert_eq!(of(extra, "10.100.128.1", "255.255.0.0"), Ok(None));
        }
        assert_eq!(of(on, "", ""), Ok(None));
    }

    #[test]
    fn invalid_interface_or_address_is_named() {
        for name in [
            "eth0",
            "lo",
            "br-overlay",
            "tap-overlay",
            "a/b",
            "a b",
            "..",
            "sixteen-letters-",
        ] {
            let extra = json!({"enable": true, "interface": name});
            let problem = of(extra, "10.100.128.1", "255.255.0.0").expect_err(name);
            assert!(problem.to_string().contains(name), "{problem}");
        }
        for (address, mask) in [
            ("10.100.128", "255.255.0.0"),
            ("fe80::1", "255.255.0.0"),
            ("10.100.128.1", "255.0.255.0"),
            ("10.100.128.1", "0.0.0.0"),
            ("10.100.128.1", "16"),
            ("10.100.128.1", ""),
        ] {
            let problem = of(json!({"enable": true}), address, mask).expect_err(mask);
            assert!(problem.to_string().contains("extraNetMask"), "{problem}");
        }
    }

    proptest! {
        #[test]
        fn only_addresses_of_spec_and_status_reach_the_command_line(
            name in ".{0,20}", address in "[0-9.:, ]{0,20}", mask in "[0-9.:, ]{0,20}",
        ) {
            if let Ok(Some(nic)) = of(json!({"enable": true, "interface": name}), &address, &mask) {
                let word = kernel_word(&nic, "p");
                prop_assert!(word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b','), "{word}");
                prop_assert!(nic.interface.len() <= 15 && !nic.interface.contains(['/', ' ', ',']));
            }
        }
    }
}
