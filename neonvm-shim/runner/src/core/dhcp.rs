//! A DHCP server with one lease. Guests made for NeonVM ask for their address; ours read it from
//! the kernel's command line.

use std::net::Ipv4Addr;

use smoltcp::wire::{
    DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr, EthernetAddress, Ipv4Address,
};

use super::bridge::{GUEST, MASK, POD};
use crate::config::Resolver;

/// UDP port of DHCP servers.
pub const SERVER_PORT: u16 = 67;
/// UDP port of DHCP clients.
pub const CLIENT_PORT: u16 = 68;
const FOREVER: u32 = u32::MAX;
/// Options that the library does not encode: name servers, and search domains (RFC 3397).
const SERVERS: u8 = 6;
const SEARCH: u8 = 119;
const MAX_OPTION_BYTES: usize = 255;

/// Parameters of the one lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Hardware address of the client, as on QEMU's command line.
    pub mac: String,
    /// Name servers and search domains of the client.
    pub resolver: Resolver,
}

impl Lease {
    /// Answers a packet of the client: an offer to a discover, an acknowledgement to a request for
    /// the guest's address, a refusal to one for another address. `None` for anything else.
    #[must_use]
    pub fn answer(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let packet = DhcpPacket::new_checked(packet).ok()?;
        let question = DhcpRepr::parse(&packet).ok()?;
        let is_ours = text(question.client_hardware_address) == self.mac;
        let is_for_us = question
            .server_identifier
            .is_none_or(|server| server == POD);
        if !is_ours || !is_for_us || !question.relay_agent_ip.is_unspecified() {
            return None;
        }
        let requested = question.requested_ip.unwrap_or(question.client_ip);
        let kind = match question.message_type {
            DhcpMessageType::Discover => DhcpMessageType::Offer,
            DhcpMessageType::Inform => DhcpMessageType::Ack,
            DhcpMessageType::Request if requested == GUEST => DhcpMessageType::Ack,
            DhcpMessageType::Request => DhcpMessageType::Nak,
            _ => return None,
        };
        self.packet(&question, kind)
    }

    fn packet(&self, question: &DhcpRepr<'_>, kind: DhcpMessageType) -> Option<Vec<u8>> {
        // A refusal carries nothing else, and a client that has an address gets none.
        let is_granted = kind != DhcpMessageType::Nak;
        let assigns = is_granted && question.message_type != DhcpMessageType::Inform;
        let nothing = Ipv4Address::UNSPECIFIED;
        let more = if is_granted { self.more() } else { Vec::new() };
        let options: Vec<DhcpOption<'_>> = more
            .iter()
            .map(|(kind, data)| DhcpOption { kind: *kind, data })
            .collect();
        let answer = DhcpRepr {
            message_type: kind,
            client_ip: if assigns || !is_granted {
                nothing
            } else {
                question.client_ip
            },
            your_ip: if assigns { GUEST } else { nothing },
            server_ip: nothing,
            router: is_granted.then_some(POD),
            subnet_mask: is_granted.then_some(MASK),
            broadcast: true,
            requested_ip: None,
            client_identifier: None,
            server_identifier: Some(POD),
            parameter_request_list: None,
            dns_servers: None,
            max_size: None,
            lease_duration: assigns.then_some(FOREVER),
            renew_duration: None,
            rebind_duration: None,
            additional_options: &options,
            ..question.clone()
        };
        let mut bytes = vec![0; answer.buffer_len()];
        let mut packet = DhcpPacket::new_unchecked(bytes.as_mut_slice());
        answer.emit(&mut packet).ok()?;
        Some(bytes)
    }

    fn more(&self) -> Vec<(u8, Vec<u8>)> {
        let servers = self.resolver.servers.iter().flat_map(Ipv4Addr::octets);
        let mut search = Vec::new();
        for name in &self.resolver.search {
            let mut bytes = Vec::new();
            for label in name.split('.') {
                bytes.push(u8::try_from(label.len()).unwrap_or(0));
                bytes.extend(label.bytes());
            }
            bytes.push(0);
            if search.len() + bytes.len() <= MAX_OPTION_BYTES {
                search.extend(bytes);
            }
        }
        let all = [(SERVERS, servers.collect()), (SEARCH, search)];
        all.into_iter()
            .filter(|(_, data): &(u8, Vec<u8>)| !data.is_empty())
            .collect()
    }
}

fn text(mac: EthernetAddress) -> String {
    let bytes: Vec<String> = mac.0.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAC: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0xf4, 1, 9]);
    const FIXED: usize = 240;

    fn lease() -> Lease {
        Lease {
            mac: text(MAC),
            resolver: Resolver::of("nameserver 10.96.0.10\nsearch b.c a\n"),
        }
    }

    fn asks(message_type: DhcpMessageType) -> DhcpRepr<'static> {
        let nothing = Ipv4Address::UNSPECIFIED;
        DhcpRepr {
            message_type,
            transaction_id: 7,
            secs: 0,
            client_hardware_address: MAC,
            client_ip: nothing,
            your_ip: nothing,
            server_ip: nothing,
            router: None,
            subnet_mask: None,
            relay_agent_ip: nothing,
            broadcast: false,
            requested_ip: None,
            client_identifier: None,
            server_identifier: None,
            parameter_request_list: None,
            dns_servers: None,
            max_size: None,
            lease_duration: None,
            renew_duration: None,
            rebind_duration: None,
            additional_options: &[],
        }
    }

    fn bytes(question: &DhcpRepr<'_>) -> Vec<u8> {
        let mut bytes = vec![0; question.buffer_len()];
        let mut packet = DhcpPacket::new_unchecked(bytes.as_mut_slice());
        question.emit(&mut packet).expect("it encodes");
        bytes
    }

    fn kind(question: &DhcpRepr<'_>) -> Option<DhcpMessageType> {
        let answer = lease().answer(&bytes(question))?;
        let packet = DhcpPacket::new_checked(answer.as_slice()).expect("it is one");
        Some(DhcpRepr::parse(&packet).expect("it decodes").message_type)
    }

    #[test]
    fn guest_gets_its_address_gateway_and_resolver() {
        let answer = lease()
            .answer(&bytes(&asks(DhcpMessageType::Discover)))
            .expect("an offer");
        let packet = DhcpPacket::new_checked(answer.as_slice()).expect("it is one");
        let offer = DhcpRepr::parse(&packet).expect("it decodes");
        assert_eq!(offer.message_type, DhcpMessageType::Offer);
        assert_eq!((offer.transaction_id, offer.your_ip), (7, GUEST));
        assert_eq!((offer.router, offer.subnet_mask), (Some(POD), Some(MASK)));
        assert_eq!(offer.server_identifier, Some(POD));
        assert_eq!(offer.lease_duration, Some(FOREVER));
        let servers = offer.dns_servers.expect("servers");
        assert_eq!(servers.as_slice(), [Ipv4Addr::new(10, 96, 0, 10)]);
        let search = packet
            .options()
            .find(|option| option.kind == SEARCH)
            .map(|option| option.data.to_vec());
        assert_eq!(search.as_deref(), Some(b"\x01b\x01c\0\x01a\0".as_slice()));
    }

    #[test]
    fn another_address_is_refused_and_another_server_left_alone() {
        let mut request = asks(DhcpMessageType::Request);
        request.requested_ip = Some(GUEST);
        assert_eq!(kind(&request), Some(DhcpMessageType::Ack));
        request.requested_ip = Some(POD);
        assert_eq!(kind(&request), Some(DhcpMessageType::Nak));
        // A renewing client names its address in the header.
        request.requested_ip = None;
        request.client_ip = GUEST;
        assert_eq!(kind(&request), Some(DhcpMessageType::Ack));
        request.server_identifier = Some(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(kind(&request), None);
    }

    #[test]
    fn requests_of_other_clients_are_ignored() {
        let mut other = asks(DhcpMessageType::Discover);
        other.client_hardware_address = EthernetAddress([1; 6]);
        assert_eq!(kind(&other), None);
        assert_eq!(kind(&asks(DhcpMessageType::Release)), None);
        let mut relayed = asks(DhcpMessageType::Discover);
        relayed.relay_agent_ip = POD;
        assert_eq!(kind(&relayed), None);
        let mut long = bytes(&asks(DhcpMessageType::Discover));
        // A hardware address longer than its field.
        long[2] = 0xff;
        assert_eq!(lease().answer(&long), None);
        assert_eq!(lease().answer(&[]), None);
    }

    proptest! {
        #[test]
        fn any_packet_is_handled(packet in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = lease().answer(&packet);
        }

        #[test]
        fn any_options_are_answered_to_the_guest_only(
            options in proptest::collection::vec(any::<u8>(), 0..300), ours in any::<bool>(),
        ) {
            let mut question = asks(DhcpMessageType::Discover);
            if !ours {
                question.client_hardware_address = EthernetAddress([1; 6]);
            }
            let mut packet = bytes(&question);
            // Three bytes behind the message type.
            packet.truncate(FIXED + 3);
            packet.extend(options);
            if let Some(answer) = lease().answer(&packet) {
                prop_assert!(ours);
                let answer = DhcpPacket::new_checked(answer.as_slice()).expect("it is one");
                let answer = DhcpRepr::parse(&answer).expect("it decodes");
                prop_assert_eq!(answer.client_hardware_address, MAC);
            }
        }
    }
}
