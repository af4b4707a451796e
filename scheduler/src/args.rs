//! The command line of `autoscale-scheduler`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args as ArgGroup, Parser, ValueEnum};
use daemon_kit::tls::{IdentityFiles, Server, ServerFiles, TlsError};
use protocol::time::{Span, WallTime};

use crate::core::elect::ElectRule;
use crate::core::lease::LeaseRule;
use crate::{Callers, CallersError, Leadership, LeaseName, REVIEW_LASTS, ReviewRule, TokenFile};

/// What a call of the last leader may take beyond its time-out before it has landed or never will.
const LATE_CALL: Span = Span::from_secs(1);

/// After this no binding of a dead process is carried out any more: the time-out of a call, and as
/// much again for the API server.
const BINDINGS_END: Span = Span::from_secs(2);

/// Grants increases to virtual machines and places their pods.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Args {
    /// Config file; without it the values that ship are used.
    #[arg(long, env = "SCHEDULER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where agents ask for permits.
    #[arg(long, env = "SCHEDULER_LISTEN", default_value = "127.0.0.1:10299")]
    pub listen: SocketAddr,
    /// Where the kube-scheduler beside this process asks as its extender; nothing listens without
    /// it. Only loopback: whoever reaches it may bind pods.
    #[arg(long, env = "SCHEDULER_EXTENDER_LISTEN", value_parser = loopback)]
    pub extender_listen: Option<SocketAddr>,
    /// Who may ask for permits: at least one proof, or --permits-for-anyone.
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Where metrics and the state are shown.
    #[arg(
        long,
        env = "SCHEDULER_METRICS_LISTEN",
        default_value = "127.0.0.1:9100"
    )]
    pub metrics_listen: SocketAddr,
    /// Place pods too, on a machine without kube-scheduler.
    #[arg(long)]
    pub embedded_bind: bool,
    /// Without a Lease: milliseconds before the first lists, so that bindings of an earlier process
    /// have ended; 2000 if this process binds pods, else 0.
    #[arg(long)]
    pub takeover_wait_ms: Option<u64>,
    /// Whether there are other replicas.
    #[command(flatten)]
    pub lease: LeaseArgs,
    /// Print the effective configuration and stop.
    #[arg(long)]
    pub check_config: bool,
}

impl Args {
    /// How long to wait before the first lists where no Lease says that an earlier process ended.
    ///
    /// By the operator's word no other scheduler runs then. A call that a dead one had sent may
    /// still be carried out after the lists. A late binding takes room that this process may have
    /// given away, so a process that binds waits until no call can be late. A late permit needs
    /// no wait, for three reasons:
    ///
    /// * its agent was not answered, so it uses nothing of it and asks again, and an agent's own
    ///   word bounds what a request holds (`core::decide`);
    /// * the write is conditional on the version of the VM: it fails once this process has written;
    /// * what is written all the same comes by the watch and is counted from then on.
    ///
    /// One case is left: an agent that also restarts in that second has no word of its own and
    /// takes the late approval for a permit. `--takeover-wait-ms` closes it, and the wait
    /// is the price.
    #[must_use]
    pub fn takeover_wait(&self) -> Span {
        let binds = self.embedded_bind || self.extender_listen.is_some();
        let default = if binds { BINDINGS_END } else { Span(0) };
        self.takeover_wait_ms.map_or(default, Span::from_millis)
    }
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| "not an address and a port")?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("not a loopback address".into())
    }
}

/// The options about who may ask for permits.
#[derive(Debug, Clone, ArgGroup)]
pub struct TrustArgs {
    /// Tokens of which a caller must send one, each with the node it is for or for all.
    #[arg(long, env = "SCHEDULER_TOKENS")]
    pub tokens: Option<PathBuf>,
    /// Certificate (PEM) of the permit port, which speaks TLS then.
    #[arg(long, env = "SCHEDULER_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key (PEM, mode 0600 or 0400).
    #[arg(long, env = "SCHEDULER_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authority (PEM) that must have signed a caller's certificate; without it none is asked for.
    #[arg(long, env = "SCHEDULER_TLS_CLIENT_CA", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Have the API server review callers' tokens, which must be for this audience.
    #[arg(
        long,
        env = "SCHEDULER_TOKEN_REVIEW_AUDIENCE",
        requires = "token_review_users"
    )]
    pub token_review_audience: Option<String>,
    /// Users whose reviewed tokens are good, such as
    /// system:serviceaccount:kube-system:autoscaler-agent.
    #[arg(
        long,
        env = "SCHEDULER_TOKEN_REVIEW_USERS",
        value_delimiter = ',',
        requires = "token_review_audience"
    )]
    pub token_review_users: Vec<String>,
    /// Grant permits to anyone who reaches the port, as Neon's scheduler does. Without it a token
    /// or a client certificate must be asked for.
    #[arg(
        long,
        env = "SCHEDULER_PERMITS_FOR_ANYONE",
        conflicts_with_all = ["tokens", "tls_client_ca", "token_review_audience"]
    )]
    pub permits_for_anyone: bool,
}

/// Why what callers have to prove cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file of tokens.
    #[error(transparent)]
    Tokens(#[from] CallersError),
    /// The files for TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Neither a proof nor the option that asks for none.
    #[error(
        "anyone who reaches the permit port could take a whole node: callers must prove who they are. Give --tokens, \
         --token-review-audience or --tls-client-ca; or --permits-for-anyone, if the network lets nobody but agents reach the port"
    )]
    NoProof,
}

impl TrustArgs {
    /// What they mean, with the files read.
    ///
    /// # Errors
    /// [`TrustError`] when a file cannot be used.
    pub fn callers(&self) -> Result<Callers, TrustError> {
        let has_token = self.tokens.is_some() || self.token_review_audience.is_some();
        let needs_no_token = self.permits_for_anyone || self.tls_client_ca.is_some();
        if !has_token && !needs_no_token {
            return Err(TrustError::NoProof);
        }
        let tokens = self.tokens.as_deref().map(TokenFile::load).transpose()?;
        let files = self.tls_cert.clone().zip(self.tls_key.clone());
        let files = files.map(|(cert, key)| ServerFiles {
            identity: IdentityFiles { cert, key },
            client_authority: self.tls_client_ca.clone(),
        });
        let review = self.token_review_audience.clone();
        let review = review.map(|audience| ReviewRule {
            audience,
            users: self.token_review_users.iter().cloned().collect(),
            lasts: REVIEW_LASTS,
        });
        Ok(Callers {
            tls: files.map(Server::load).transpose()?,
            tokens,
            review,
            secret: None,
            needs_no_token,
        })
    }
}

/// How it is told which replica leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LeaseMode {
    /// There is no other replica.
    Off,
    /// The replicas elect one of them.
    Own,
    /// The replica beside the kube-scheduler that holds the Lease leads.
    Follow,
}

/// The options about the Lease.
#[derive(Debug, Clone, ArgGroup)]
pub struct LeaseArgs {
    /// How it is told which replica leads.
    #[arg(long = "lease", env = "SCHEDULER_LEASE", default_value = "off")]
    pub mode: LeaseMode,
    /// Namespace of the Lease.
    #[arg(
        long = "lease-namespace",
        env = "SCHEDULER_LEASE_NAMESPACE",
        default_value = "kube-system"
    )]
    pub namespace: String,
    /// Name of the Lease; of an election of our own it must not be kube-scheduler's.
    #[arg(
        long = "lease-name",
        env = "SCHEDULER_LEASE_NAME",
        default_value = "autoscale-scheduler-permits"
    )]
    pub name: String,
    /// This replica's name; of its host by default, as kube-scheduler's.
    #[arg(long = "lease-host", env = "SCHEDULER_LEASE_HOST")]
    pub host: Option<String>,
    /// In an election of our own: seconds after its last renewal from which a leader is replaced.
    #[arg(long = "lease-seconds", env = "SCHEDULER_LEASE_SECONDS", default_value_t = 8,
        value_parser = clap::value_parser!(u64).range(4..=600))]
    pub seconds: u64,
}

impl LeaseArgs {
    /// What they mean for a process that starts now. `call` is the time-out of one API call.
    ///
    /// # Errors
    /// When no host name is given and this machine's cannot be read.
    pub fn leadership(&self, call: Span, now: WallTime) -> std::io::Result<Leadership> {
        let host = || match &self.host {
            Some(host) => Ok(host.clone()),
            None => std::fs::read_to_string("/proc/sys/kernel/hostname")
                .map(|name| name.trim().to_owned()),
        };
        let lease = LeaseName {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        };
        let settle = Span(call.0 + LATE_CALL.0);
        Ok(match self.mode {
            LeaseMode::Off => Leadership::Alone,
            LeaseMode::Own => {
                // The next process of the same host is another one: what this one began may yet be
                // under way.
                let identity = format!("{}_{}-{:x}", host()?, std::process::id(), now.0);
                let duration = Span::from_secs(self.seconds);
                let rule = ElectRule {
                    identity,
                    duration,
                    settle,
                };
                Leadership::Elected(lease, rule)
            }
            LeaseMode::Follow => {
                let rule = LeaseRule::of_host(host()?);
                Leadership::Followed(lease, LeaseRule { settle, ..rule })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leadership(options: &[&str]) -> Leadership {
        let args = Args::try_parse_from([&["autoscale-scheduler"], options].concat());
        let lease = args.expect("parses").lease;
        lease
            .leadership(Span::from_secs(1), WallTime(0xabc))
            .expect("the host has a name")
    }

    #[test]
    fn lists_wait_only_for_bindings_of_an_earlier_process() {
        let wait = |options: &[&str]| {
            let args = Args::try_parse_from([&["autoscale-scheduler"], options].concat());
            args.expect("parses").takeover_wait()
        };
        assert_eq!(wait(&[]), Span(0));
        assert_eq!(wait(&["--embedded-bind"]), Span::from_secs(2));
        let extender = ["--extender-listen", "127.0.0.1:0"];
        assert_eq!(wait(&extender), Span::from_secs(2));
        let given = ["--embedded-bind", "--takeover-wait-ms", "7"];
        assert_eq!(wait(&given), Span::from_millis(7));
    }

    #[test]
    fn the_options_say_who_leads() {
        assert!(matches!(leadership(&[]), Leadership::Alone));
        let own = leadership(&["--lease", "own", "--lease-host", "s-1"]);
        let Leadership::Elected(lease, rule) = own else {
            panic!("{own:?}")
        };
        assert_eq!(lease.namespace, "kube-system");
        assert_eq!(rule.identity, format!("s-1_{}-abc", std::process::id()));
        assert_eq!(
            (rule.duration, rule.settle),
            (Span::from_secs(8), Span::from_secs(2))
        );
        let follow = leadership(&["--lease", "follow", "--lease-name", "autoscale-scheduler"]);
        let Leadership::Followed(lease, rule) = follow else {
            panic!("{follow:?}")
        };
        assert_eq!(lease.name, "autoscale-scheduler");
        assert!(!rule.host.is_empty() && rule.host.trim() == rule.host);
        for bad in [
            &["--lease", "maybe"][..],
            &["--lease-seconds", "3"],
            &["--tls-cert", "c"],
            &["--tls-key", "k"],
            &["--tls-client-ca", "a"],
            &["--token-review-audience", "a"],
            &["--token-review-users", "u"],
            &["--extender-listen", "10.0.0.1:10298"],
            &["--extender-listen", "localhost"],
            &["--permits-for-anyone", "--tokens", "t"],
            &[
                "--permits-for-anyone",
                "--tls-client-ca",
                "a",
                "--tls-cert",
                "c",
                "--tls-key",
                "k",
            ],
        ] {
            assert!(Args::try_parse_from([&["autoscale-scheduler"][..], bad].concat()).is_err());
        }
    }

    /// Requirement: W4.
    #[test]
    fn permits_without_proof_take_an_option_of_their_own() {
        let callers = |options: &[&str]| {
            let args = Args::try_parse_from([&["autoscale-scheduler"], options].concat());
            args.expect("parses").trust.callers()
        };
        let error = callers(&[]).err().expect("no proof is asked for");
        assert!(
            error.to_string().contains("--permits-for-anyone"),
            "{error}"
        );
        assert!(callers(&["--permits-for-anyone"]).is_ok_and(|callers| callers.needs_no_token));
        let review = [
            "--token-review-audience",
            "permits",
            "--token-review-users",
            "u",
        ];
        assert!(callers(&review).is_ok_and(|callers| !callers.needs_no_token));
    }
}
