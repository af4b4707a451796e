//! Which callers the daemon serves: the guest's host only. It acts as root, so programs of the
//! guest are refused, and so are hosts in an overlay network.
//!
//! A program of the guest can connect from any address of the guest to any other, between a
//! loopback address and that of the first device in either direction. So neither end may be a
//! loopback address, and the caller's address none of the guest's. Only root can use an address
//! that the guest does not have.

use std::net::IpAddr;

use super::overlay::Overlay;

/// Reasons to refuse a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The caller is a program of this guest.
    Inside,
    /// The caller is in the overlay network.
    Overlay,
}

/// Reason to refuse a caller at `peer` that connected to `local`, in a guest with the addresses
/// `own`. `None` if it is the host.
#[must_use]
pub fn refusal(
    peer: IpAddr,
    local: IpAddr,
    own: &[IpAddr],
    overlay: Option<Overlay>,
) -> Option<Refusal> {
    let (peer, local) = (peer.to_canonical(), local.to_canonical());
    let is_own = |address: &IpAddr| address.to_canonical() == peer;
    if peer.is_loopback() || local.is_loopback() || peer == local || own.iter().any(is_own) {
        return Some(Refusal::Inside);
    }
    overlay
        .is_some_and(|overlay| overlay.has(peer))
        .then_some(Refusal::Overlay)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(peer: &str, local: &str) -> Option<Refusal> {
        let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let own = ["127.0.0.1", "169.254.254.254", "10.100.0.7", "fd00::2"];
        let overlay = Overlay::of("ip=10.100.0.7:::255.255.0.0:pg:eth1:off");
        refusal(address(peer), address(local), &own.map(address), overlay)
    }

    #[test]
    fn only_the_host_is_served() {
        for (peer, local) in [
            ("169.254.254.253", "169.254.254.254"),
            ("10.0.2.2", "10.0.2.15"),
            ("192.168.3.4", "169.254.254.254"),
            ("::ffff:10.0.2.2", "::ffff:10.0.2.15"),
            ("fd00::1", "fd00::2"),
        ] {
            assert_eq!(at(peer, local), None, "{peer} at {local}");
        }
        for (peer, local) in [
            ("10.100.0.8", "10.100.0.7"),
            ("10.100.0.8", "169.254.254.254"),
            ("::ffff:10.100.0.8", "::ffff:10.100.0.7"),
            ("fe80::1", "fe80::2"),
        ] {
            assert_eq!(at(peer, local), Some(Refusal::Overlay), "{peer} at {local}");
        }
    }

    #[test]
    fn program_of_the_guest_is_refused_from_any_of_its_addresses() {
        for (peer, local) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.8.9.1", "127.0.0.1"),
            ("127.0.0.1", "169.254.254.254"),
            ("169.254.254.254", "169.254.254.254"),
            ("169.254.254.254", "127.0.0.1"),
            ("10.100.0.7", "169.254.254.254"),
            ("10.0.2.15", "10.0.2.15"),
            ("::1", "::1"),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
            ("::ffff:169.254.254.254", "::ffff:10.100.0.7"),
            ("fd00::2", "::1"),
            ("fd00::2", "fd00::3"),
        ] {
            assert_eq!(at(peer, local), Some(Refusal::Inside), "{peer} at {local}");
        }
    }
}
