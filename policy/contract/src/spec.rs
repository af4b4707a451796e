//! What a policy consists of, and its digest.

use std::collections::BTreeMap;
use std::fmt;

use protocol::policy::{
    FeedSource, Refusal, ScalingPolicySpec, Scope, Series, check_feeds, check_params, check_series,
    check_source,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::canonical;

/// Version of the contract.
pub const CONTRACT: u32 = 1;

/// The part of a policy that its answers depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Version of the contract, [`CONTRACT`].
    pub contract: u32,
    /// What the policy decides about.
    pub scope: Scope,
    /// Program of the policy, Lua.
    pub source: String,
    /// Numbers that the program reads as `i.params`.
    #[serde(default)]
    pub params: BTreeMap<String, f64>,
    /// Series beyond [`Series::ALWAYS`].
    #[serde(default)]
    pub series: Vec<Series>,
    /// Figures from pages of the guest.
    #[serde(default)]
    pub feeds: Vec<FeedSource>,
}

impl From<ScalingPolicySpec> for Spec {
    fn from(spec: ScalingPolicySpec) -> Self {
        Self {
            contract: CONTRACT,
            scope: spec.scope,
            source: spec.source,
            params: spec.params,
            series: spec.series,
            feeds: spec.feeds,
        }
    }
}

impl Spec {
    /// A policy for VMs without parameters, further series and feeds.
    #[must_use]
    pub fn of_source(source: impl Into<String>) -> Self {
        Self {
            contract: CONTRACT,
            scope: Scope::Vm,
            source: source.into(),
            params: BTreeMap::new(),
            series: Vec::new(),
            feeds: Vec::new(),
        }
    }

    /// SHA-256 over the canonical JSON.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of_bytes(canonical::text(self).as_bytes())
    }

    /// Series that the policy has without naming them. Sets have the sums of their feeds alone.
    fn always(&self) -> &'static [&'static str] {
        match self.scope {
            Scope::Vm => &Series::ALWAYS,
            Scope::Set => &[],
        }
    }

    /// Names of all series of the past that the policy may read.
    #[must_use]
    pub fn all_series(&self) -> Vec<Series> {
        let always = self.always().iter().filter_map(|name| Series::of(name));
        let feeds = self
            .feeds
            .iter()
            .filter_map(|feed| Series::of(&format!("{}{}", Series::FEED, feed.name)));
        always
            .chain(self.series.iter().cloned())
            .chain(feeds)
            .collect()
    }

    /// Whether the policy may read a series.
    #[must_use]
    pub fn has_series(&self, name: &str) -> bool {
        self.always().contains(&name)
            || self.series.iter().any(|one| one.as_str() == name)
            || name.strip_prefix(Series::FEED).is_some_and(|feed| {
                let mut feeds = self.feeds.iter();
                feeds.any(|one| one.name == feed)
            })
    }

    /// Checks every rule that needs no engine.
    ///
    /// # Errors
    /// With the first member at fault.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.contract != CONTRACT {
            return Err(Refusal::of("contract", self.contract, "version 1"));
        }
        check_source(&self.source)?;
        check_params(&self.params)?;
        check_series(self.scope, &self.series)?;
        check_feeds(&self.feeds)
    }
}

/// SHA-256 that identifies a [`Spec`] or a file, written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// SHA-256 of bytes.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The first 8 hex digits, for people and records.
    #[must_use]
    pub fn short(&self) -> String {
        self.0[..4].iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The digest that 64 lower-case hex digits write. `None` for any other text.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 64 || !text.bytes().all(is_hex) {
            return None;
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::of(&text).ok_or_else(|| serde::de::Error::custom("a digest is 64 hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_depends_on_every_member_and_on_nothing_else() {
        let base = Spec::of_source("return function(i) return std.hold('x') end");
        let mut others = vec![base.clone(); 4];
        others[0].source.push(' ');
        others[1].params.insert("headroom".into(), 1.15);
        others[2].series.extend(Series::of("pressure"));
        others[3].scope = Scope::Set;
        for other in &others {
            assert_ne!(other.digest(), base.digest());
        }
        let text = serde_json::to_string(&base).expect("plain JSON");
        let read: Spec = serde_json::from_str(&text).expect("a spec");
        assert_eq!(read.digest(), base.digest());
        assert_eq!(Digest::of(&base.digest().to_string()), Some(base.digest()));
        assert_eq!(base.digest().short(), base.digest().to_string()[..8]);
    }

    #[test]
    fn canonical_text_is_sorted_and_prints_numbers_as_ecmascript() {
        let mut spec = Spec::of_source("x");
        spec.params = [("b".into(), 1.0), ("a".into(), 1e21), ("c".into(), 0.1)].into();
        assert_eq!(
            canonical::text(&spec),
            r#"{"contract":1,"feeds":[],"params":{"a":1e+21,"b":1,"c":0.1},"scope":"vm","series":[],"source":"x"}"#
        );
    }

    #[test]
    fn spec_is_refused_with_path_and_rule() {
        let feed = |name: &str, port, metric: &str| FeedSource {
            metric: metric.into(),
            name: name.into(),
            port,
        };
        let good = Spec::of_source("return 1");
        assert_eq!(good.check(), Ok(()));
        type Change = Box<dyn Fn(&mut Spec)>;
        let cases: Vec<(&str, Change)> = vec![
            ("contract", Box::new(|s| s.contract = 2)),
            ("source", Box::new(|s| s.source = " \n".into())),
            ("source", Box::new(|s| s.source = "x".repeat(65_537))),
            ("source", Box::new(|s| s.source = "\u{1b}Lua".into())),
            ("source", Box::new(|s| s.source = "a\0b".into())),
            ("source", Box::new(|s| s.source = "\u{6}\u{3}abc".into())),
            (
                "params",
                Box::new(|s| {
                    s.params = (0..33).map(|n| (format!("p{n}"), 0.0)).collect();
                }),
            ),
            (
                "params",
                Box::new(|s| s.params = [("A".into(), 0.0)].into()),
            ),
            (
                "params.a",
                Box::new(|s| s.params = [("a".into(), f64::NAN)].into()),
            ),
            (
                "series[0]",
                Box::new(|s| s.series.extend(Series::of("load1"))),
            ),
            (
                "series[1]",
                Box::new(|s| {
                    s.series.extend(Series::of("pressure"));
                    s.series.extend(Series::of("pressure"));
                }),
            ),
            (
                "feeds",
                Box::new(move |s| {
                    s.feeds = (0..9).map(|n| feed(&format!("f{n}"), 1, "m")).collect();
                }),
            ),
            (
                "feeds[0].name",
                Box::new(move |s| s.feeds = vec![feed("a b", 1, "m")]),
            ),
            (
                "feeds[0].port",
                Box::new(move |s| s.feeds = vec![feed("a", 0, "m")]),
            ),
            (
                "feeds[0].metric",
                Box::new(move |s| s.feeds = vec![feed("a", 1, "1m")]),
            ),
            (
                "feeds[1].name",
                Box::new(move |s| {
                    s.feeds = vec![feed("a", 1, "m"), feed("a", 2, "m")];
                }),
            ),
        ];
        for (path, change) in cases {
            let mut spec = good.clone();
            change(&mut spec);
            let refusal = spec.check().expect_err(path);
            assert_eq!(refusal.path, path, "{refusal}");
        }
    }
}
