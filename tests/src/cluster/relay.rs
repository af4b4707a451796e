//! Connections from one network into another: from this machine into that of a cluster, or from
//! there into a pod's.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, setns};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Listens here, writes the address into `note`, enters the network namespace and carries every
/// connection to `to` there. Never ends. To be called before there is any other thread: a socket
/// belongs to the namespace that its thread is in.
///
/// # Errors
/// When it cannot begin.
pub fn relay(network: &Path, to: SocketAddr, note: &Path) -> Result<()> {
    let (listener, address) = listen()?;
    enter(network)?;
    let fresh = note.with_extension("new");
    std::fs::write(&fresh, address.to_string())?;
    std::fs::rename(fresh, note)?;
    carry(listener, to, std::future::pending())
}

/// A relay in a thread of its own, as long as this is kept.
#[derive(Debug)]
pub struct Relay {
    /// Address at which it listens, in the network of the caller.
    pub address: SocketAddr,
    _end: oneshot::Sender<()>,
}

impl Relay {
    /// Forwards every connection to `to` in another network.
    ///
    /// # Errors
    ///
    /// If it cannot listen, or cannot enter that network.
    pub fn into_network(network: &Path, to: SocketAddr) -> Result<Self> {
        let (listener, address) = listen()?;
        let (end, ended) = oneshot::channel();
        let (begun, begins) = std::sync::mpsc::channel();
        let network = network.to_owned();
        std::thread::spawn(move || {
            let entered = enter(&network);
            let is_there = entered.is_ok();
            // The caller waits for this message.
            let _ = begun.send(entered);
            if is_there {
                let ended = async { drop(ended.await) };
                let _ = carry(listener, to, ended);
            }
        });
        begins.recv().context("the thread has ended")??;
        Ok(Self { address, _end: end })
    }
}

fn listen() -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Listens at an address of another network.
pub(super) fn listen_in(network: &Path, address: SocketAddr) -> Result<TcpListener> {
    let network = network.to_owned();
    // A socket belongs to the network of the thread that opened it. Any thread may use it.
    let opening = std::thread::spawn(move || {
        enter(&network)?;
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        anyhow::Ok(listener)
    });
    opening.join().ok().context("the thread has ended")?
}

/// Puts this thread into a network.
pub(super) fn enter(network: &Path) -> Result<()> {
    let namespace =
        File::open(network).with_context(|| format!("cannot open {}", network.display()))?;
    setns(namespace, CloneFlags::CLONE_NEWNET).context("cannot enter the network")
}

fn carry(listener: TcpListener, to: SocketAddr, end: impl Future<Output = ()>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let each = async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (mut near, _) = listener.accept().await?;
            tokio::spawn(async move {
                // The client sees its connection end and may retry.
                let Ok(mut far) = TcpStream::connect(to).await else {
                    return;
                };
                // Small questions are not kept waiting for more.
                let _ = near.set_nodelay(true).and_then(|()| far.set_nodelay(true));
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    };
    runtime.block_on(async {
        tokio::select! {
            failed = each => failed,
            () = end => Ok(()),
        }
    })
}
