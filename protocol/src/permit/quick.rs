//! The request as agents write it, read in one pass.
//!
//! Nearly every request has the known members and sizes such as `"250m"` and `"4Gi"`, and then what
//! is read here is what [`super::AgentRequest::decode`] would read by way of a tree of values, at a
//! quarter of the time. Everything else, wrong or merely unusual, is left to it: this never says
//! what is wrong with a body.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{AgentRequest, NamespacedName, RequestMetrics};
use crate::units::{Bytes, MilliCpu, Resources};

/// Longest size of the usual form, bytes. Quantities have a bound too, and it is above this one.
const LONGEST_SIZE: usize = 24;

/// The request, if it is one of the usual form.
pub(super) fn read(body: &[u8]) -> Option<AgentRequest> {
    let Object(usual) = serde_json::from_slice::<Object<Usual>>(body).ok()?;
    Some(AgentRequest {
        proto_version: usual.proto_version,
        pod: NamespacedName {
            namespace: usual.pod.0.namespace,
            name: usual.pod.0.name,
        },
        compute_unit: usual.compute_unit.0.into(),
        resources: usual.resources.0.into(),
        last_permit: usual.last_permit.map(|Object(sizes)| sizes.into()),
        metrics: usual.metrics.map(|Object(load)| RequestMetrics {
            load_avg_1m: load.load_avg_1m,
        }),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Usual {
    proto_version: u32,
    pod: Object<Name>,
    compute_unit: Object<Sizes>,
    resources: Object<Sizes>,
    last_permit: Option<Object<Sizes>>,
    metrics: Option<Object<Load>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sizes {
    #[serde(rename = "vCPUs", deserialize_with = "milli")]
    cpu: u32,
    #[serde(deserialize_with = "bytes")]
    mem: u64,
}

impl From<Sizes> for Resources {
    fn from(sizes: Sizes) -> Self {
        Self {
            cpu: MilliCpu(sizes.cpu),
            mem: Bytes(sizes.mem),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    #[serde(rename = "loadAvg1M")]
    load_avg_1m: f32,
}

/// A struct that is an object on the wire and no list.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members)).map(Object)
    }
}

fn milli<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let milli = |text: &str| match text.strip_suffix('m') {
        Some(digits) => digits.parse().ok(),
        None => text.parse::<u32>().ok()?.checked_mul(1000),
    };
    let cores = |number: u64| u32::try_from(number).ok()?.checked_mul(1000);
    deserializer.deserialize_any(Size(milli, cores))
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes = |text: &str| {
        let units = [("Gi", 30), ("Mi", 20), ("Ki", 10), ("", 0)];
        let mut found = units.into_iter();
        let (digits, shift) =
            found.find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))?;
        // More than a quantity can hold is for others to refuse.
        let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
        i64::try_from(bytes).is_ok().then_some(bytes)
    };
    let plain = |number: u64| i64::try_from(number).is_ok().then_some(number);
    deserializer.deserialize_any(Size(bytes, plain))
}

/// A size as text and as a number; nothing where it is of no usual form.
struct Size<T, N>(T, N);

impl<V, T, N> Visitor<'_> for Size<T, N>
where
    T: Fn(&str) -> Option<V>,
    N: Fn(u64) -> Option<V>,
{
    type Value = V;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size of the usual form")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<V, E> {
        let text = Some(text).filter(|text| text.len() <= LONGEST_SIZE);
        text.and_then(|text| self.0(text))
            .ok_or_else(|| E::custom("unusual"))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<V, E> {
        self.1(number).ok_or_else(|| E::custom("unusual"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const USUAL: &str = r#"{"protoVersion":7,"pod":{"namespace":"default","name":"p"},"computeUnit":{"vCPUs":"250m","mem":"1Gi"},
        "resources":{"vCPUs":1,"mem":"4Gi"},"lastPermit":{"vCPUs":"500m","mem":512},"metrics":{"loadAvg1M":0.93}}"#;

    #[test]
    fn what_agents_send_is_read_here() {
        let request = read(USUAL.as_bytes()).expect("is usual");
        assert_eq!(request.resources, Resources::new(1000, 4 << 30));
        assert_eq!(request.last_permit, Some(Resources::new(500, 512)));
        let written = serde_json::to_vec(&request).expect("encodes");
        assert_eq!(read(&written), Some(request));
        let first = r#"{"protoVersion":7,"pod":{"namespace":"default","name":"p"},"computeUnit":{"vCPUs":1,"mem":"1Gi"},
            "resources":{"vCPUs":1,"mem":"4Gi"},"lastPermit":null,"metrics":null}"#;
        assert!(read(first.as_bytes()).is_some());
    }

    /// Any spelling of a size, right or wrong.
    fn size() -> impl Strategy<Value = String> {
        let number = prop_oneof![any::<u64>(), 0..5000_u64, Just(u64::from(u32::MAX))];
        let text = (number.clone(), "(|m|n|k|M|Ki|Mi|Gi|Ti|Ei|e3|E|x)");
        prop_oneof![
            text.prop_map(|(number, unit)| format!("\"{number}{unit}\"")),
            number.prop_map(|number| number.to_string()),
            "\"[+-]?[0-9.]{0,4}(m|Gi)?\"",
            Just("null".to_owned()),
            Just("1.5".to_owned()),
            Just("-1".to_owned()),
            Just("[1]".to_owned()),
        ]
    }

    fn sizes() -> impl Strategy<Value = String> {
        prop_oneof![
            8 => (size(), size()).prop_map(|(cpu, mem)| format!(r#"{{"vCPUs":{cpu},"mem":{mem}}}"#)),
            1 => size().prop_map(|cpu| format!(r#"[{cpu},"1Gi"]"#)),
            1 => size().prop_map(|cpu| format!(r#"{{"mem":{cpu}}}"#)),
            1 => Just(r#"{"vCPUs":1,"mem":1,"mem":2,"new":1e400}"#.to_owned()),
            1 => Just("null".to_owned()),
        ]
    }

    fn body() -> impl Strategy<Value = String> {
        let version = prop_oneof![4 => Just("7"), 1 => Just("6"), 1 => Just("\"7\""), 1 => Just("7.0"), 1 => Just("null")];
        let pod = prop_oneof![
            4 => Just(r#"{"namespace":"d","name":"p"}"#),
            1 => Just(r#"{"namespace":"\ud834\udd1e","name":"\u0000"}"#),
            1 => Just(r#"{"namespace":"\ud834","name":"p"}"#),
            1 => Just(r#"["d","p"]"#),
            1 => Just(r#"{"name":"p","namespace":"d","x":1}"#),
        ];
        let metrics = prop_oneof![
            Just(String::new()),
            any::<f32>().prop_map(|load| format!(r#","metrics":{{"loadAvg1M":{load:?}}}"#)),
            any::<i64>().prop_map(|load| format!(r#","metrics":{{"loadAvg1M":{load}}}"#)),
            Just(r#","metrics":{"loadAvg1M":1,"loadAvg5M":2}"#.to_owned()),
            Just(r#","metrics":[1]"#.to_owned()),
        ];
        (version, pod, sizes(), sizes(), sizes(), metrics).prop_map(
            |(version, pod, unit, wants, has, metrics)| {
                format!(
                    r#"{{"protoVersion":{version},"pod":{pod},"computeUnit":{unit},"resources":{wants},"lastPermit":{has}{metrics}}}"#
                )
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_read_here_is_what_is_read_by_the_long_way(body in body()) {
            if let Some(request) = read(body.as_bytes())
                && request.proto_version == crate::permit::PROTO_VERSION
            {
                prop_assert_eq!(Ok(request), AgentRequest::decode_any(body.as_bytes()));
            }
        }

        #[test]
        fn cut_and_changed_bodies_are_read_alike(at in 0..USUAL.len(), byte: u8) {
            let mut body = USUAL.as_bytes().to_vec();
            body[at] = byte;
            for body in [&body[..], &body[..at]] {
                if let Some(request) = read(body)
                    && request.proto_version == crate::permit::PROTO_VERSION
                {
                    prop_assert_eq!(Ok(request), AgentRequest::decode_any(body));
                }
            }
        }
    }
}
