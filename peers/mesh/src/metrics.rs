//! Metrics of the machines, read from their status when a page is asked for.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::mesh::Mesh;
use crate::server::{MeshStatus, PeerStatus};

/// Metrics of a mesh, for a registry.
pub struct MeshMetrics(Box<dyn Fn() -> MeshStatus + Send + Sync>);

impl MeshMetrics {
    /// Metrics of `mesh`.
    #[must_use]
    pub fn new(mesh: Mesh) -> Self {
        Self(Box::new(move || mesh.status()))
    }
}

impl fmt::Debug for MeshMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeshMetrics")
    }
}

impl Collector for MeshMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = (self.0)();
        let mut page = Page(encoder);
        let alive = status.peers.iter().filter(|peer| peer.alive).count();
        page.gauge(
            "peers_alive",
            "Machines that are heard, this one included",
            alive,
        )?;
        let expected = status.expected;
        page.gauge("peers_expected", "Machines that there should be", expected)?;
        let leads = status.role == "leads";
        page.gauge("peers_leads", "1 while this machine leads", leads.into())?;
        let holds = status.role == "holds";
        let help = "1 while counts of sets stay because too few machines are heard";
        page.gauge("peers_holds", help, holds.into())?;
        let dropped = ConstCounter::new(status.dropped);
        let help = "Datagrams and requests of another key, and machines that were refused";
        let kind = dropped.metric_type();
        dropped.encode(
            page.0
                .encode_descriptor("peers_dropped", help, None, kind)?,
        )?;
        let others: Vec<&PeerStatus> = status.peers.iter().filter(|peer| !peer.this).collect();
        let help = "Round-trip time of the last request to a machine";
        page.family("peers_round_trip_seconds", help, &others, |peer| {
            peer.rtt_ms.map(|ms| ms / 1e3)
        })?;
        let help = "Time since a machine's last response";
        page.family("peers_response_age_seconds", help, &others, |peer| {
            peer.last_response_s
        })
    }
}

struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: usize) -> fmt::Result {
        let value = ConstGauge::new(u64::try_from(value).unwrap_or(u64::MAX));
        let kind = value.metric_type();
        value.encode(self.0.encode_descriptor(name, help, None, kind)?)
    }

    /// A gauge of each machine that has the value. There are 32 machines at most.
    fn family(
        &mut self,
        name: &str,
        help: &str,
        peers: &[&PeerStatus],
        value: impl Fn(&PeerStatus) -> Option<f64>,
    ) -> fmt::Result {
        let kind = ConstGauge::new(0.0).metric_type();
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (peer, value) in peers.iter().filter_map(|peer| Some((peer, value(peer)?))) {
            let labels = [("machine", peer.id.to_string())];
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    fn peer(id: &str, this: bool, rtt_ms: Option<f64>) -> PeerStatus {
        PeerStatus {
            id: id.into(),
            address: "10.0.0.1:7".parse().unwrap(),
            release: String::new(),
            this,
            alive: this || rtt_ms.is_some(),
            leads: false,
            rtt_ms,
            last_response_s: rtt_ms.map(|_| 3.0),
            units_free: 0,
            counts: std::collections::BTreeMap::new(),
        }
    }

    /// Requirement: V24
    #[test]
    fn v24_metrics_have_who_is_heard_and_each_round_trip() {
        let status = MeshStatus {
            role: "holds".to_owned(),
            reason: "minority".to_owned(),
            expected: 3,
            dropped: 2,
            wanted: std::collections::BTreeMap::new(),
            peers: vec![
                peer("a", true, None),
                peer("b", false, Some(12.5)),
                peer("c", false, None),
            ],
        };
        let mut registry = Registry::default();
        let metrics = MeshMetrics(Box::new(move || status.clone()));
        registry.register_collector(Box::new(metrics));
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        let values: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "peers_alive 2",
            "peers_expected 3",
            "peers_leads 0",
            "peers_holds 1",
            "peers_dropped_total 2",
            "peers_round_trip_seconds{machine=\"b\"} 0.0125",
            "peers_response_age_seconds{machine=\"b\"} 3.0",
        ];
        assert_eq!(values, expected);
    }
}
