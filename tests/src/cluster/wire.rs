//! Records TCP packets of a network, as an eavesdropper.

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, ReceiveTimeout};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::relay::enter;

/// Longest packet in bytes. A device may hand over several segments as one.
const PACKET: usize = 1 << 17;
/// Bytes that may wait to be read.
const BACKLOG: usize = 8 << 20;
/// Interval in ms at which a listener checks whether to end.
const LOOK_MS: i64 = 50;

/// Records packets until it is dropped or read.
#[derive(Debug)]
pub struct Wire {
    ends: Arc<AtomicBool>,
    listener: Option<JoinHandle<Result<Vec<Vec<u8>>>>>,
}

impl Wire {
    /// Starts to record the TCP packets from and to an address and port.
    ///
    /// # Errors
    ///
    /// If the network cannot be entered or recorded.
    pub fn tap(network: &Path, end: SocketAddrV4) -> Result<Self> {
        let network = network.to_owned();
        // A socket belongs to the network of the thread that opened it. Any thread may use it.
        let opening = std::thread::spawn(move || enter(&network).and_then(|()| open()));
        let socket = opening.join().ok().context("the thread has ended")??;
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let listener = std::thread::spawn(move || listen(&socket, end, &told));
        Ok(Self {
            ends,
            listener: Some(listener),
        })
    }

    /// The recorded packets with their Ethernet headers.
    ///
    /// # Errors
    ///
    /// If the recording failed.
    pub fn heard(mut self) -> Result<Vec<Vec<u8>>> {
        self.ends.store(true, Ordering::Relaxed);
        let listener = self.listener.take().context("it was begun")?;
        listener.join().ok().context("the thread has ended")?
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn open() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let all = SockProtocol::EthAll;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, all);
    let socket = socket.context("cannot listen to packets")?;
    setsockopt(&socket, RcvBuf, &BACKLOG)?;
    setsockopt(&socket, ReceiveTimeout, &TimeVal::milliseconds(LOOK_MS))?;
    Ok(socket)
}

fn listen(socket: &OwnedFd, end: SocketAddrV4, ends: &AtomicBool) -> Result<Vec<Vec<u8>>> {
    let mut heard = Vec::new();
    let mut packet = vec![0; PACKET];
    loop {
        let is_last = ends.load(Ordering::Relaxed);
        let flags = if is_last {
            MsgFlags::MSG_DONTWAIT
        } else {
            MsgFlags::empty()
        };
        match recv(socket.as_raw_fd(), &mut packet, flags) {
            Ok(length) if is_of(&packet[..length], end) => heard.push(packet[..length].to_vec()),
            // Whatever was on the wire before the end has been read.
            Err(Errno::EAGAIN) if is_last => return Ok(heard),
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot listen to packets"),
        }
    }
}

/// Whether a packet is TCP over IPv4 from or to the address.
fn is_of(packet: &[u8], end: SocketAddrV4) -> bool {
    const ETHERNET: usize = 14;
    const IPV4: [u8; 2] = [8, 0];
    const TCP: u8 = 6;
    let Some((ethernet, ip)) = packet.split_at_checked(ETHERNET) else {
        return false;
    };
    if ethernet[12..] != IPV4 || ip.get(9) != Some(&TCP) {
        return false;
    }
    let head = usize::from(ip[0] & 0xf) * 4;
    // Source and destination, each an address and a port.
    [0, 1].into_iter().any(|side| {
        let address = ip.get(12 + 4 * side..16 + 4 * side);
        let port = ip.get(head + 2 * side..head + 2 * side + 2);
        address == Some(&end.ip().octets()[..]) && port == Some(&end.port().to_be_bytes()[..])
    })
}

/// Whether `part` is somewhere in `whole`.
#[must_use]
pub fn holds(whole: &[u8], part: &[u8]) -> bool {
    whole.windows(part.len()).any(|window| window == part)
}
