//! Connections from this machine into the network of a cluster.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, setns};
use tokio::net::TcpStream;

/// Listens here, writes the address into `note`, enters the network namespace and carries every connection to `to` there. Never
/// ends. To be called before there is any other thread: a socket belongs to the namespace that its thread is in.
///
/// # Errors
/// When it cannot begin.
pub fn relay(network: &Path, to: SocketAddr, note: &Path) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let namespace =
        File::open(network).with_context(|| format!("cannot open {}", network.display()))?;
    setns(namespace, CloneFlags::CLONE_NEWNET).context("cannot enter the network")?;
    let fresh = note.with_extension("new");
    std::fs::write(&fresh, address.to_string())?;
    std::fs::rename(fresh, note)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (mut near, _) = listener.accept().await?;
            tokio::spawn(async move {
                // Whoever connected sees its connection end and may try again.
                let Ok(mut far) = TcpStream::connect(to).await else {
                    return;
                };
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    })
}
