//! The command line of `autoscale-scheduler`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args as ArgGroup, Parser, ValueEnum};
use daemon_kit::tls::{IdentityFiles, Server, ServerFiles, TlsError};
use protocol::time::{Span, WallTime};

use crate::core::elect::ElectRule;
use crate::core::lease::LeaseRule;
use crate::{Callers, CallersError, Leadership, LeaseName, REVIEW_LASTS, ReviewRule, TokenFile};

/// Time beyond a call's time-out after which the last leader's call has an effect or never will.
const LATE_CALL: Span = Span::from_secs(1);

/// Time after which no binding of a dead process has an effect: the time-out of a call, and as much
/// again for the API server.
const BINDINGS_END: Span = Span::from_secs(2);

/// Grants increases to virtual machines and places their pods.
#[derive(Debug, Parser)]
#[command(version = protocol::release::RELEASE)]
pub struct Args {
    /// Config file, JSON. Without it the values that ship are used.
    #[arg(long, env = "SCHEDULER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Address and port of the permit server for agents; port 0 takes a free one.
    #[arg(long, env = "SCHEDULER_LISTEN", default_value = "127.0.0.1:10299")]
    pub listen: SocketAddr,
    /// Address and port of the extender for the kube-scheduler beside this process. Without it
    /// there is no extender. Only loopback, because each client of it may bind pods.
    #[arg(long, env = "SCHEDULER_EXTENDER_LISTEN", value_parser = loopback)]
    pub extender_listen: Option<SocketAddr>,
    /// Proofs that callers of the permit server give.
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Address and port of metrics, health and the state dump.
    #[arg(
        long,
        env = "SCHEDULER_METRICS_LISTEN",
        default_value = "127.0.0.1:9100"
    )]
    pub metrics_listen: SocketAddr,
    /// Place pods too, on a machine without kube-scheduler. Off by default.
    #[arg(long)]
    pub embedded_bind: bool,
    /// Milliseconds before the first lists, without a Lease, so that bindings of an earlier process
    /// have ended. Default: 2000 if this process binds pods, otherwise 0.
    #[arg(long)]
    pub takeover_wait_ms: Option<u64>,
    /// The choice of the leader among replicas.
    #[command(flatten)]
    pub lease: LeaseArgs,
    /// Print the effective configuration and stop.
    #[arg(long)]
    pub check_config: bool,
}

impl Args {
    /// Time to wait before the first lists if no Lease shows that an earlier process has ended.
    ///
    /// The operator promises that no other scheduler runs then. A call that a dead scheduler sent
    /// may still have an effect after the lists. A late binding takes headroom that this process
    /// may have granted, so a process that binds waits until no call can be late. A late permit
    /// needs no wait, for three reasons:
    ///
    /// * the agent received no response, so it does not use the permit and sends the request again.
    ///   The agent's own claim bounds the headroom that a request holds (`core::decide`);
    /// * the write tests the version of the VM, so it fails once this process has written;
    /// * a write that has an effect all the same arrives by the watch and counts from then on.
    ///
    /// One case is left: an agent that also restarts in that second has no claim, and takes the
    /// late approval for a permit. `--takeover-wait-ms` closes this case at the price of the wait.
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

/// Options about the proofs that callers of the permit server give.
#[derive(Debug, Clone, ArgGroup)]
pub struct TrustArgs {
    /// File of tokens, each for one node or for all. A caller must send one of them.
    #[arg(long, env = "SCHEDULER_TOKENS")]
    pub tokens: Option<PathBuf>,
    /// Certificate of the permit port, PEM. With it the port speaks TLS.
    #[arg(long, env = "SCHEDULER_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of that certificate, PEM, mode 0600 or 0400.
    #[arg(long, env = "SCHEDULER_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Authority that must have signed a caller's certificate, PEM. Without it callers need none.
    #[arg(long, env = "SCHEDULER_TLS_CLIENT_CA", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Audience of the callers' tokens. With it the API server reviews each token.
    #[arg(
        long,
        env = "SCHEDULER_TOKEN_REVIEW_AUDIENCE",
        requires = "token_review_users"
    )]
    pub token_review_audience: Option<String>,
    /// Users whose reviewed tokens are accepted, such as
    /// system:serviceaccount:kube-system:autoscaler-agent, separated by commas.
    #[arg(
        long,
        env = "SCHEDULER_TOKEN_REVIEW_USERS",
        value_delimiter = ',',
        requires = "token_review_audience"
    )]
    pub token_review_users: Vec<String>,
    /// Grant permits to every caller that reaches the port, as Neon's scheduler does. Off by
    /// default: callers then need a token or a client certificate.
    #[arg(
        long,
        env = "SCHEDULER_PERMITS_FOR_ANYONE",
        conflicts_with_all = ["tokens", "tls_client_ca", "token_review_audience"]
    )]
    pub permits_for_anyone: bool,
}

/// Why the permit server cannot check its callers. The program reports it and exits.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file of tokens is not readable or has a bad line.
    #[error(transparent)]
    Tokens(#[from] CallersError),
    /// A file for TLS is not readable or does not parse.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The options name no proof, and do not include `--permits-for-anyone`.
    #[error(
        "anyone who reaches the permit port could take a whole node: callers must prove who they are. Give --tokens, \
         --token-review-audience or --tls-client-ca; or --permits-for-anyone, if the network lets nobody but agents reach the port"
    )]
    NoProof,
}

impl TrustArgs {
    /// Reads the files that the options name.
    ///
    /// # Errors
    /// [`TrustError`] if a file is bad, or if callers would need no proof.
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

/// The choice of the leading replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LeaseMode {
    /// No choice: there is no other replica.
    Off,
    /// The replicas elect one of them by a Lease of their own.
    Own,
    /// The replica leads whose host's kube-scheduler holds kube-scheduler's Lease.
    Follow,
}

/// Options about the Lease of the leader.
#[derive(Debug, Clone, ArgGroup)]
pub struct LeaseArgs {
    /// The choice of the leading replica.
    #[arg(long = "lease", env = "SCHEDULER_LEASE", default_value = "off")]
    pub mode: LeaseMode,
    /// Namespace of the Lease.
    #[arg(
        long = "lease-namespace",
        env = "SCHEDULER_LEASE_NAMESPACE",
        default_value = "kube-system"
    )]
    pub namespace: String,
    /// Name of the Lease. With `own` it must not be kube-scheduler's Lease.
    #[arg(
        long = "lease-name",
        env = "SCHEDULER_LEASE_NAME",
        default_value = "autoscale-scheduler-permits"
    )]
    pub name: String,
    /// Name of this replica's host, as kube-scheduler writes it into its Lease. Default: the host
    /// name of this machine.
    #[arg(long = "lease-host", env = "SCHEDULER_LEASE_HOST")]
    pub host: Option<String>,
    /// With `own`: seconds after its last renewal from which a leader is replaced, 4 to 600.
    #[arg(long = "lease-seconds", env = "SCHEDULER_LEASE_SECONDS", default_value_t = 8,
        value_parser = clap::value_parser!(u64).range(4..=600))]
    pub seconds: u64,
}

impl LeaseArgs {
    /// The leadership of a process that starts at `now`. `call`: the time-out of one API call.
    ///
    /// # Errors
    /// The options give no host name, and the one of this machine is not readable.
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
                // The next process of the same host needs another identity, because calls of this
                // one may still be under way.
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
