//! Families of series, and the labels of a series.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// The labels of a series. Their values come from closed sets, node names and zones.
pub(super) type Labels = Vec<(String, String)>;
pub(super) type Counters = Family<Labels, Counter>;
pub(super) type Amount = Gauge<f64, AtomicU64>;
pub(super) type Amounts = Family<Labels, Amount>;

/// The name of a node and the labels that the configuration adds.
pub(super) fn of_node(
    name: &str,
    node_labels: &BTreeMap<String, String>,
    extra: &BTreeMap<String, String>,
) -> Labels {
    let mut base = labels(&[("node", name)]);
    for (metric_label, node_label) in extra {
        let value = node_labels.get(node_label).cloned().unwrap_or_default();
        base.push((metric_label.clone(), value));
    }
    base
}

pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "a gauge: 53 bits are enough")]
pub(super) fn float(amount: u128) -> f64 {
    amount as f64
}
