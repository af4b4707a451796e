//! The command line of `policy-controller`.

use std::net::SocketAddr;

use clap::Parser;
use leader_election::LeaseName;
use leader_election::core::elect::ElectRule;
use protocol::time::{Span, WallTime};
use protocol::units::Resources;

use crate::SetParams;

/// Program that asks policies.
const PROGRAM: &str = "bellows-policy";

/// A new leader begins when calls of the last one have landed or never will.
const SETTLE: Span = Span::from_secs(3);

/// Decides which version of each scaling policy decides: lets candidates on by rule, and takes
/// versions back that do harm. In a cluster two replicas run, and one of them works.
#[derive(Debug, Clone, Parser)]
#[command(name = "policy-controller", version = protocol::release::RELEASE)]
pub struct Args {
    /// Address of metrics, health and log filter
    #[arg(long, default_value = "0.0.0.0:7780", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Label selector of the agents' pods
    #[arg(long, default_value = "name=autoscaler-agent", value_name = "SELECTOR")]
    pub agent_labels: String,
    /// Port of the agents' metrics
    #[arg(long, default_value_t = 9100, value_name = "PORT")]
    pub agent_port: u16,
    /// Name of the Lease
    #[arg(long, default_value = "bellows-policy", value_name = "NAME")]
    pub lease_name: String,
    /// Namespace of the Lease
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    pub lease_namespace: String,
    /// Seconds from a leader's last renewal until another replica may replace it
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(4..=3600), value_name = "SECONDS")]
    pub lease_seconds: u64,
    /// How policies of sets are asked
    #[command(flatten)]
    pub sets: SetArgs,
}

/// How policies of sets are asked.
#[derive(Debug, Clone, Parser)]
pub struct SetArgs {
    /// CPU of a compute unit, thousandths of a core, as in the agents' file
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..), value_name = "MILLI")]
    pub unit_cpu: u32,
    /// Memory of a compute unit, MiB, as in the agents' file
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 30), value_name = "MIB")]
    pub unit_memory: u64,
    /// Port of members that feeds of sets may be read from; may be given again
    #[arg(long = "feed-port", default_values_t = [9100], value_name = "PORT")]
    pub feed_ports: Vec<u16>,
}

impl SetArgs {
    /// Parameters of policies of sets. The program is beside this one.
    #[must_use]
    pub fn params(&self) -> SetParams {
        let own = std::env::current_exe().ok();
        let beside = own.and_then(|own| Some(own.parent()?.join(PROGRAM)));
        SetParams {
            program: beside.filter(|file| file.is_file()),
            unit: Resources::new(self.unit_cpu, self.unit_memory << 20),
            feed_ports: self.feed_ports.clone(),
            wish_file: None,
            journal: None,
        }
    }
}

impl Args {
    /// The Lease and the rule of its election.
    ///
    /// # Errors
    /// When this machine's name cannot be read.
    pub fn election(&self, now: WallTime) -> std::io::Result<(LeaseName, ElectRule)> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
        let lease = LeaseName {
            namespace: self.lease_namespace.clone(),
            name: self.lease_name.clone(),
        };
        let rule = ElectRule {
            // A later process of the same host gets another identity, because writes of the earlier
            // one may still be in flight.
            identity: format!("{}_{}-{:x}", host.trim(), std::process::id(), now.0),
            duration: Span::from_secs(self.lease_seconds),
            settle: SETTLE,
        };
        Ok((lease, rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_that_of_the_policies() {
        let args = Args::try_parse_from(["policy-controller"]).expect("parses");
        let (lease, rule) = args.election(WallTime(1)).expect("a host");
        assert_eq!(
            (&*lease.namespace, &*lease.name),
            ("kube-system", "bellows-policy")
        );
        assert_eq!(rule.duration, Span::from_secs(15));
        let short = ["policy-controller", "--lease-seconds", "3"];
        assert!(Args::try_parse_from(short).is_err());
    }
}
