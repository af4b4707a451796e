//! Access to the kernel: links and entries by netlink, rules by iptables, which stores the rules in
//! the same way as other programs of the node.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use neonvm_links::{Kind, Link, Links, LinksError, Tunnel};
use tokio::process::Command;

use crate::core::nat::{NatSeen, NatStep};
use crate::core::{BRIDGE, LinkSeen, PORT, Seen, Step, TUNNEL, TunnelSeen, VNI};

/// How long iptables waits for the lock on the rules, in seconds.
const LOCK_SECONDS: &str = "5";
/// Longest run of iptables.
const IPTABLES_LIMIT: Duration = Duration::from_secs(30);

/// Errors of observing the kernel or executing a step.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A request about links or entries failed.
    #[error("links")]
    Links(#[from] LinksError),
    /// A link has vanished since it was observed.
    #[error("{0} was removed meanwhile")]
    Gone(&'static str),
    /// The iptables of the node cannot be executed.
    #[error(
        "cannot execute {0}: name the iptables of this node with --iptables, or leave rules alone with --exempt=none"
    )]
    Iptables(PathBuf, #[source] std::io::Error),
    /// iptables refused these arguments, with these messages.
    #[error("iptables {0}: {1}")]
    Refused(String, String),
}

/// Netlink and iptables of one network namespace.
#[derive(Debug)]
pub struct Kernel {
    links: Links,
    iptables: Option<PathBuf>,
}

impl Kernel {
    /// Opens the network namespace of this thread. Without a program the rules are left alone.
    ///
    /// # Errors
    /// The netlink socket cannot be opened.
    pub fn open(iptables: Option<PathBuf>) -> Result<Self, LinksError> {
        let links = Links::open()?;
        Ok(Self { links, iptables })
    }

    /// Observes links, entries and rules.
    ///
    /// # Errors
    /// [`KernelError`].
    pub async fn look(&self) -> Result<Seen, KernelError> {
        let bridge = self.links.find(BRIDGE).await?;
        let tunnel = self.links.find(TUNNEL).await?;
        let master = bridge.as_ref().map(|link| link.index);
        let tunnel = match tunnel {
            None => None,
            Some(link) => Some(LinkSeen {
                up: link.up,
                is: self.tunnel(&link, master).await?,
            }),
        };
        let bridge = bridge.map(|link| LinkSeen {
            is: (link.kind == Kind::Bridge).then_some(()),
            up: link.up,
        });
        let nat = match &self.iptables {
            None => NatSeen::default(),
            Some(_) => NatSeen::read(&self.iptables(&["-S".to_owned()]).await?),
        };
        Ok(Seen {
            bridge,
            tunnel,
            nat,
        })
    }

    async fn tunnel(
        &self,
        link: &Link,
        bridge: Option<u32>,
    ) -> Result<Option<TunnelSeen>, KernelError> {
        let Kind::Tunnel(Tunnel {
            vni,
            local,
            port,
            learning,
        }) = link.kind
        else {
            return Ok(None);
        };
        Ok(Some(TunnelSeen {
            vni,
            local,
            port,
            learning,
            in_bridge: link.master.is_some() && link.master == bridge,
            targets: self.links.targets(link.index).await?,
        }))
    }

    /// Executes a step.
    ///
    /// # Errors
    /// [`KernelError`]; another look shows the effect.
    pub async fn act(&self, step: &Step) -> Result<(), KernelError> {
        let links = &self.links;
        match step {
            Step::AddBridge => links.add_bridge(BRIDGE, None).await?,
            Step::RaiseBridge => links.raise(self.index(BRIDGE).await?).await?,
            Step::AddTunnel(local) => {
                let tunnel = Tunnel {
                    vni: Some(VNI),
                    local: Some(*local),
                    port: Some(PORT),
                    learning: true,
                };
                links.add_tunnel(TUNNEL, &tunnel).await?;
            }
            Step::JoinBridge => {
                let bridge = self.index(BRIDGE).await?;
                links.join(self.index(TUNNEL).await?, bridge).await?;
            }
            Step::RaiseTunnel => links.raise(self.index(TUNNEL).await?).await?,
            Step::AddTarget(to) => links.add_target(self.index(TUNNEL).await?, *to).await?,
            Step::RemoveTarget(to) => links.remove_target(self.index(TUNNEL).await?, *to).await?,
            Step::Nat(NatStep(words)) => drop(self.iptables(words).await?),
            Step::DeleteTunnel => links.delete(self.index(TUNNEL).await?).await?,
            Step::DeleteBridge => links.delete(self.index(BRIDGE).await?).await?,
        }
        Ok(())
    }

    async fn index(&self, name: &'static str) -> Result<u32, KernelError> {
        let link = self.links.find(name).await?;
        link.map(|link| link.index).ok_or(KernelError::Gone(name))
    }

    /// Runs iptables on the table `nat` and returns its output.
    async fn iptables(&self, words: &[String]) -> Result<String, KernelError> {
        let program = self.iptables.clone().unwrap_or_default();
        let failed = |error| KernelError::Iptables(program.clone(), error);
        let mut command = Command::new(&program);
        command.args(["-w", LOCK_SECONDS, "-t", "nat"]).args(words);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(IPTABLES_LIMIT, output)
            .await
            .map_err(|late| failed(late.into()))?
            .map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(KernelError::Refused(words.join(" "), said));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
