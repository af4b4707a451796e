//! The command line of `bellows-fleet`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use leader_election::LeaseName;
use leader_election::core::elect::ElectRule;
use protocol::time::{Span, WallTime};

/// A new leader begins when calls of the last one have landed or never will.
const SETTLE: Span = Span::from_secs(3);

/// Rolls new versions of parts out to the guests of a cluster. Two replicas run, and one of them
/// works.
///
/// Exit codes: 0 after a signal, 64 for a wrong option or file, 69 if something is missing at the
/// start, 70 if its own work stands still, 75 if another replica has taken the lead.
#[derive(Debug, Clone, Parser)]
#[command(name = "bellows-fleet", version = protocol::release::RELEASE)]
pub struct Args {
    /// Address of metrics, health and log filter
    #[arg(long, default_value = "0.0.0.0:7780", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Address of join scripts; it is listened on only with the settings `join`
    #[arg(long, default_value = "0.0.0.0:7781", value_name = "ADDRESS")]
    pub join_listen: SocketAddr,
    /// JSON file of settings; the built-in settings without it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the settings as JSON and exit
    #[arg(long)]
    pub check_config: bool,
    /// Folder of verified programs, metadata of channels and the journal. It may be lost
    #[arg(long, default_value = "/var/lib/bellows-fleet", value_name = "DIR")]
    pub state_dir: PathBuf,
    /// Name of the Lease
    #[arg(long, default_value = "bellows-fleet", value_name = "NAME")]
    pub lease_name: String,
    /// Namespace of the Lease
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    pub lease_namespace: String,
    /// Seconds from a leader's last renewal until another replica may replace it
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(4..=3600), value_name = "SECONDS")]
    pub lease_seconds: u64,
    /// What to do in place of the rollouts
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do in place of the rollouts.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Check that a control plane of a release understands all that runs, and end.
    ///
    /// Exit codes: 0 if it does, 1 if a part has no common version of a link, 64 for a wrong option
    /// or file, 69 if no channel has the release, 75 if the API or a channel does not answer.
    Preflight {
        /// Release of the new control plane [default: that of this program]
        #[arg(long, default_value = protocol::release::RELEASE, value_parser = semver::Version::parse, value_name = "VERSION")]
        control_plane: semver::Version,
    },
}

impl Args {
    /// The Lease and the rule of its election, for a replica on `host`.
    #[must_use]
    pub fn election(&self, host: &str, now: WallTime) -> (LeaseName, ElectRule) {
        let lease = LeaseName {
            namespace: self.lease_namespace.clone(),
            name: self.lease_name.clone(),
        };
        let rule = ElectRule {
            // A later process of the same host gets another identity, because writes of the earlier
            // one may still be in flight.
            identity: format!("{host}_{}-{:x}", std::process::id(), now.0),
            duration: Span::from_secs(self.lease_seconds),
            settle: SETTLE,
        };
        (lease, rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_that_of_the_fleet_and_identity_differs_by_process() {
        let args = Args::try_parse_from(["bellows-fleet"]).expect("parses");
        let (lease, rule) = args.election("a", WallTime(1));
        let name = (&*lease.namespace, &*lease.name);
        assert_eq!(name, ("kube-system", "bellows-fleet"));
        assert_eq!(rule.duration, Span::from_secs(15));
        let later = args.election("a", WallTime(2)).1;
        assert_ne!(rule.identity, later.identity);
        for bad in [
            ["bellows-fleet", "--lease-seconds", "3"],
            ["bellows-fleet", "--listen", "7780"],
            ["bellows-fleet", "--unknown", "x"],
        ] {
            assert!(Args::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }
}
