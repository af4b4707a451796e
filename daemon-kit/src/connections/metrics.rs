//! Counts the connections that a bound has closed.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Limit that closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Total number of the server's connections.
    Capacity,
    /// Number of connections of one peer address.
    Peer,
    /// Number of open files of the process.
    Descriptors,
    /// Time for a request's head or body, for the next request, or for taking a response.
    Timeout,
}

impl Reason {
    const fn label(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Peer => "peer",
            Self::Descriptors => "descriptors",
            Self::Timeout => "timeout",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    server: &'static str,
    reason: &'static str,
}

/// The metric `http_connections_closed_total{server,reason}` of one registry.
#[derive(Debug, Clone, Default)]
pub struct ConnectionCounters(Family<Labels, Counter>);

impl ConnectionCounters {
    /// Registers the metric. Call once for a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let counters = Self::default();
        registry.register(
            "http_connections_closed",
            "Connections that a bound of the server has closed",
            counters.0.clone(),
        );
        counters
    }

    /// The counters of one server. All of them are shown from the start.
    #[must_use]
    pub fn server(&self, server: &'static str) -> ServerCounters {
        let counters = ServerCounters {
            family: self.0.clone(),
            server,
        };
        for reason in [
            Reason::Capacity,
            Reason::Peer,
            Reason::Descriptors,
            Reason::Timeout,
        ] {
            counters.of(reason);
        }
        counters
    }
}

/// Counters of one server's closed connections, by reason.
#[derive(Debug, Clone)]
pub struct ServerCounters {
    family: Family<Labels, Counter>,
    server: &'static str,
}

impl ServerCounters {
    /// Counters that no page shows, for a server without a registry.
    #[must_use]
    pub fn unregistered() -> Self {
        ConnectionCounters::default().server("none")
    }

    /// Counts a connection that `reason` has closed.
    pub fn closed(&self, reason: Reason) {
        self.of(reason).inc();
    }

    fn of(&self, reason: Reason) -> Counter {
        let labels = Labels {
            server: self.server,
            reason: reason.label(),
        };
        self.family.get_or_create(&labels).clone()
    }

    #[cfg(test)]
    pub(super) fn count(&self, reason: Reason) -> u64 {
        self.of(reason).get()
    }
}
