//! The kernel's uevent socket.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram as StdDatagram;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, socket,
};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::core::uevent::{Topic, topic};

/// Multicast group of the kernel (2 is udev's).
const KERNEL_GROUP: u32 = 1;
/// Longest message in bytes; the kernel's own bound is 2 KiB of environment plus the head line.
const MESSAGE_BYTES: usize = 8192;

/// Source of kernel events about CPUs and memory.
#[derive(Debug)]
pub struct Uevents {
    /// A netlink socket. The type only serves its registration with tokio, which does not support
    /// netlink: it is read with `recvfrom` only.
    socket: UnixDatagram,
}

impl Uevents {
    /// Opens the socket. Must be called inside the runtime.
    ///
    /// # Errors
    /// The kernel refuses the socket or its group.
    pub fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let protocol = SockProtocol::NetlinkKObjectUEvent;
        let fd = socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))?;
        Ok(Self {
            socket: UnixDatagram::from_std(StdDatagram::from(fd))?,
        })
    }

    /// Waits for the next event about CPUs or memory. `None` stands for lost messages, after which
    /// everything must be read.
    ///
    /// # Errors
    /// The socket has failed.
    pub async fn next(&self) -> io::Result<Option<Topic>> {
        let mut message = [0_u8; MESSAGE_BYTES];
        loop {
            let receive = || {
                recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), &mut message)
                    .map_err(io::Error::from)
            };
            match self.socket.async_io(Interest::READABLE, receive).await {
                // Only the kernel has port 0; messages of other senders are ignored.
                Ok((length, Some(from))) if from.pid() == 0 => {
                    if let Some(topic) = topic(&message[..length]) {
                        return Ok(Some(topic));
                    }
                }
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn kernel_grants_the_uevent_socket() {
        // No CPU can be plugged into the machine of the tests. The test shows that the socket
        // opens, binds, and does not block. Tests with a real guest show the events.
        let uevents = Uevents::open().expect("netlink is there");
        let quiet = tokio::time::timeout(std::time::Duration::from_millis(20), uevents.next());
        if let Ok(event) = quiet.await {
            event.expect("the socket works");
        }
    }
}
