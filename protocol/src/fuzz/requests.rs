//! Requests of the permit link and orders to a runner.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::migration::{IncomingOrder, OutgoingOrder};
use crate::permit::{AgentRequest, PROTO_VERSION, PermitRefusal};
use crate::runner::{CpusAhead, SizeOrder, StopOrder};

/// Most that an order may have of the bytes it was read from, as JSON: amounts are written out,
/// defaults are added.
const MAX_FACTOR: usize = 8;
/// What an order may have beyond that, bytes.
const MARGIN_BYTES: usize = 512;

/// The body of a permit request. The fast reader and the one for every form agree, a request that
/// is read prints as a body that reads as the same request, and the refusal of its content names
/// the member.
pub fn permit_body(data: &[u8]) {
    let read = AgentRequest::decode(data);
    assert_eq!(read, AgentRequest::decode_any(data));
    let request = match read {
        Ok(request) => request,
        Err(refusal) => {
            assert_eq!(refusal.status(), 400, "{refusal}");
            return;
        }
    };
    assert_eq!(request.proto_version, PROTO_VERSION);
    let again = serde_json::to_vec(&request).expect("it prints");
    assert_eq!(AgentRequest::decode(&again).as_ref(), Ok(&request));
    match request.validate() {
        Ok(()) => assert!(request.compute_unit.zero_field().is_none()),
        Err(PermitRefusal::ZeroComputeUnit(member)) => {
            assert!(["vCPUs", "mem"].contains(&member), "{member}");
        }
        Err(refusal) => panic!("{refusal}"),
    }
}

/// The body of an order to a runner; the first byte says of which. An order that is read prints as
/// a body that reads as the same order. An object with a member of another name is refused by that
/// name.
pub fn runner_control(data: &[u8]) {
    let Some((which, body)) = data.split_first() else {
        return;
    };
    match which % 5 {
        0 => order::<SizeOrder>(body),
        1 => order::<CpusAhead>(body),
        2 => order::<StopOrder>(body),
        3 => order::<OutgoingOrder>(body),
        _ => order::<IncomingOrder>(body),
    }
}

fn order<T: DeserializeOwned + Serialize + PartialEq + Debug>(body: &[u8]) {
    let Ok(order) = serde_json::from_slice::<T>(body) else {
        return;
    };
    let text = serde_json::to_string(&order).expect("it prints");
    assert_eq!(serde_json::from_str::<T>(&text).ok().as_ref(), Some(&order));
    assert!(
        text.len() <= body.len() * MAX_FACTOR + MARGIN_BYTES,
        "{text}"
    );
    if let Some(members) = text.strip_prefix('{') {
        let other = format!("{{\"unheard_of\":1,{members}");
        let refusal = serde_json::from_str::<T>(&other).expect_err("another member");
        assert!(refusal.to_string().contains("unheard_of"), "{refusal}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use test_seeds::Body;

    use super::*;

    #[test]
    fn every_seed_of_requests_holds() {
        let bodies: [Body<'static>; 2] = [
            ("permit_body", permit_body),
            ("runner_control", runner_control),
        ];
        test_seeds::hold(&bodies);
    }

    fn seed<T: DeserializeOwned>(name: &str) -> Result<T, serde_json::Error> {
        let bytes = std::fs::read(format!("../fuzz/seeds/runner_control/{name}")).expect(name);
        serde_json::from_slice(&bytes[1..])
    }

    /// Each order is among the seeds in a form that is read.
    #[test]
    fn seeds_of_orders_are_orders() {
        seed::<SizeOrder>("size").expect("an order");
        seed::<CpusAhead>("ahead").expect("an order");
        seed::<StopOrder>("stop").expect("an order");
        seed::<OutgoingOrder>("outgoing").expect("an order");
        seed::<IncomingOrder>("incoming").expect("an order");
    }

    /// An amount as agents write it, and as they do not.
    const AMOUNT: &str = r#"("?[0-9]{1,19}(\.[0-9]{1,3})?(m|k|Ki|Mi|Gi|E|e3)?"?|null|-1|\[\])"#;

    fn any_permit() -> impl Strategy<Value = String> {
        let sizes = format!(r#"(\{{"vCPUs":{AMOUNT},"mem":{AMOUNT}\}}|null)"#);
        let text = format!(
            r#"\{{"protoVersion":(7|7|7|[0-9]),"pod":\{{"namespace":"[a-c]?","name":"p"\}},"computeUnit":{sizes},"resources":{sizes},"lastPermit":{sizes},"metrics":(null|\{{"loadAvg1M":[0-9]{{1,3}}(\.[0-9]{{1,9}})?(e[0-9]{{1,3}})?\}})(,"x":1)?\}}"#
        );
        proptest::string::string_regex(&text).expect("a pattern")
    }

    fn any_order() -> impl Strategy<Value = String> {
        let word = "(cpu|memory|trace|grace_ms|id|to|how|shape|disk|postcopy|stream|sockets|encrypted|auto|layer)";
        let value = format!(r#"({AMOUNT}|"{word}"|\{{("{word}":{AMOUNT})?\}}|true)"#);
        let text = format!(r#"\{{("{word}":{value},){{0,4}}"{word}":{value}\}}"#);
        proptest::string::string_regex(&text).expect("a pattern")
    }

    proptest! {
        #[test]
        fn permit_bodies_hold(text in any_permit(), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            permit_body(text.as_bytes());
            permit_body(&bytes);
        }

        #[test]
        fn orders_hold(which in 0_u8..5, text in any_order(), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            runner_control(&[&[which], text.as_bytes()].concat());
            runner_control(&[&[which], &bytes[..]].concat());
        }
    }
}
