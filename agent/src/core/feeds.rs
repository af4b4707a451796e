//! Feeds: figures of a guest's own programs, which a version of a policy names. Their values are no
//! input of the core. Driver and replay take the same ones in the same order.

use std::collections::BTreeMap;

use policy_contract::{FeedSource, Series, Spec};

/// The sources of some versions, each once, in the order of the step `Feeds`. Guests' ports that
/// the administrator does not allow are left out, so nothing is read there.
#[must_use]
pub fn sources<'a>(specs: impl Iterator<Item = &'a Spec>, ports: &[u16]) -> Vec<FeedSource> {
    let mut all: Vec<FeedSource> = Vec::new();
    for source in specs.flat_map(|spec| &spec.feeds) {
        if ports.contains(&source.port) && !all.contains(source) {
            all.push(source.clone());
        }
    }
    all
}

/// Values of a version's own feeds by name, among those of all sources.
#[must_use]
pub fn values_of<'a>(
    spec: &Spec,
    sources: &'a [FeedSource],
    values: &[Option<f64>],
) -> Vec<(&'a str, f64)> {
    let both = sources.iter().zip(values);
    both.filter(|(source, _)| spec.feeds.contains(source))
        .filter_map(|(source, value)| Some((source.name.as_str(), (*value)?)))
        .collect()
}

/// Samples of the past that values are.
#[must_use]
pub fn samples_of(values: &[(&str, f64)]) -> BTreeMap<String, f64> {
    let single = |value: f64| {
        #[expect(clippy::cast_possible_truncation, reason = "infinity is left out")]
        let single = f64::from(value as f32);
        single.is_finite().then_some(single)
    };
    let named = values.iter().filter_map(|(name, value)| {
        let series = format!("{}{name}", Series::FEED);
        Some((series, single(*value)?))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, port: u16) -> FeedSource {
        FeedSource {
            metric: "ci_jobs_running".into(),
            name: name.into(),
            port,
        }
    }

    fn spec(feeds: Vec<FeedSource>) -> Spec {
        Spec {
            feeds,
            ..Spec::of_source("return 1")
        }
    }

    /// Requirement: V03
    #[test]
    fn v03_port_that_is_not_allowed_is_no_source() {
        let [allowed, other] = [source("jobs", 9200), source("keys", 22)];
        let specs = [
            spec(vec![allowed.clone(), other]),
            spec(vec![allowed.clone()]),
        ];
        assert_eq!(sources(specs.iter(), &[9200]), [allowed]);
        assert_eq!(sources(specs.iter(), &[]), []);
    }

    #[test]
    fn version_gets_the_values_of_its_own_sources() {
        let [old, new] = [source("jobs", 9200), source("jobs", 9201)];
        let specs = [spec(vec![old.clone()]), spec(vec![new.clone()])];
        let all = sources(specs.iter(), &[9200, 9201]);
        assert_eq!(all, [old, new]);
        let values = [Some(3.0), None];
        assert_eq!(values_of(&specs[0], &all, &values), [("jobs", 3.0)]);
        assert_eq!(values_of(&specs[1], &all, &values), []);
        let samples = samples_of(&[("jobs", 1e300), ("queue", 0.1)]);
        let expected = ("feed:queue".to_owned(), f64::from(0.1_f32));
        assert_eq!(samples.into_iter().collect::<Vec<_>>(), [expected]);
    }
}
