//! Transport of the link between agent and monitor: TCP, or AF_VSOCK, the socket between a guest
//! and its host that needs no network in the guest. The monitor listens, the agent dials.

pub mod sys;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, Backlog, SockFlag, SockProtocol, SockType, VsockAddr, getsockname,
};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs, UnixStream};

use sys::Registered;

/// Length of the accept queue. Agents connect one at a time.
const BACKLOG: i32 = 16;

/// A byte stream in both directions, over any transport.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection over either transport.
pub type Stream = Box<dyn Duplex>;

/// Smallest context id of a guest. Smaller ones are the hypervisor's, the machine's own and the
/// host's.
pub const FIRST_GUEST_CID: u32 = 3;

/// Connects by TCP, without Nagle's algorithm: frames are short and each one is awaited.
///
/// # Errors
/// The system's error: the name is not found, the peer refuses or is not reached.
pub async fn dial_tcp(to: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to an AF_VSOCK port of the machine with this context id.
///
/// # Errors
/// The kernel's error: it has no AF_VSOCK, no such machine, or no listener there.
pub async fn dial_vsock(cid: u32, port: u32) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let none: Option<SockProtocol> = None;
    let socket =
        socket::socket(AddressFamily::Vsock, SockType::Stream, flags, none).map_err(explained)?;
    match socket::connect(socket.as_raw_fd(), &VsockAddr::new(cid, port)) {
        Ok(()) => {}
        Err(Errno::EINPROGRESS) => {
            let waiting = sys::register(socket.try_clone()?, Interest::WRITABLE)?;
            let _connected_or_failed = waiting.writable().await?;
            let error = socket::getsockopt(&socket, socket::sockopt::SocketError)?;
            if error != 0 {
                return Err(explained(Errno::from_raw(error)));
            }
        }
        Err(errno) => return Err(explained(errno)),
    }
    stream_of(socket)
}

/// Address of a listener: `0.0.0.0:10369`, `vsock:10369` or `vsock:3:10369`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// IP address and TCP port.
    Tcp(SocketAddr),
    /// Context id and port of AF_VSOCK.
    Vsock {
        /// Context id of the machine, or [`Address::ANY`].
        cid: u32,
        /// Port number, or [`Address::ANY`] for a free one.
        port: u32,
    },
}

impl Address {
    /// Any context id (`VMADDR_CID_ANY`), any port (`VMADDR_PORT_ANY`).
    pub const ANY: u32 = u32::MAX;

    /// Parses an address.
    ///
    /// # Errors
    /// A sentence that names the text and shows the format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("vsock:") else {
            return text.parse().map(Self::Tcp).map_err(|_| {
                format!("{text:?} is no address such as 0.0.0.0:10369 or vsock:10369")
            });
        };
        let number = |digits: &str| {
            let parsed = digits.parse::<u32>().ok();
            parsed.ok_or_else(|| format!("{text:?} is no vsock:PORT or vsock:CID:PORT"))
        };
        let (cid, port) = match rest.split_once(':') {
            Some((cid, port)) => (number(cid)?, number(port)?),
            None => (Self::ANY, number(rest)?),
        };
        // As with TCP, 0 asks for a free port.
        let port = if port == 0 { Self::ANY } else { port };
        Ok(Self::Vsock { cid, port })
    }

    /// Whether a listener at `other` excludes one at this address.
    #[must_use]
    pub fn is_taken_by(self, other: SocketAddr) -> bool {
        matches!(self, Self::Tcp(own) if own == other && own.port() != 0)
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Vsock {
                cid: Self::ANY,
                port,
            } => write!(f, "vsock:{port}"),
            Self::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
        }
    }
}

/// A listening socket from outside, not polled by any runtime.
#[derive(Debug)]
pub enum BoundSocket {
    /// A socket of TCP.
    Tcp(std::net::TcpListener),
    /// A non-blocking socket of AF_VSOCK.
    Vsock(OwnedFd),
}

/// A listener of either transport.
#[derive(Debug)]
pub enum Listener {
    /// A listening TCP socket, without Nagle's algorithm on its connections.
    Tcp(TcpListener),
    /// A listening socket of AF_VSOCK.
    Vsock(VsockListener),
}

impl Listener {
    /// Binds and listens on an address.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn bind(address: Address) -> io::Result<Self> {
        match address {
            Address::Tcp(addr) => TcpListener::bind(addr).await.map(Self::Tcp),
            Address::Vsock { cid, port } => VsockListener::listen(cid, port).map(Self::Vsock),
        }
    }

    /// A listener that a service manager or an earlier program of this process has bound.
    ///
    /// # Errors
    /// The kernel cannot poll the socket.
    pub fn from_bound(bound: BoundSocket) -> io::Result<Self> {
        match bound {
            BoundSocket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener).map(Self::Tcp)
            }
            BoundSocket::Vsock(socket) => {
                let registered = sys::register(socket, Interest::READABLE)?;
                Ok(Self::Vsock(VsockListener(registered)))
            }
        }
    }

    /// The bound address, with the assigned port.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Vsock(listener) => listener.address(),
        }
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// The kernel's error; the next call may succeed.
    pub async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Frames are small and each one is an awaited response.
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            Self::Vsock(listener) => listener.accept().await,
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Vsock(listener) => listener.0.get_ref().get().as_fd(),
        }
    }
}

/// A listening AF_VSOCK socket, registered with tokio's reactor.
#[derive(Debug)]
pub struct VsockListener(AsyncFd<Registered<OwnedFd>>);

impl VsockListener {
    fn listen(cid: u32, port: u32) -> io::Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let none: Option<SockProtocol> = None;
        let socket = socket::socket(AddressFamily::Vsock, SockType::Stream, flags, none)
            .map_err(explained)?;
        socket::bind(socket.as_raw_fd(), &VsockAddr::new(cid, port)).map_err(explained)?;
        socket::listen(&socket, Backlog::new(BACKLOG)?)?;
        sys::register(socket, Interest::READABLE).map(Self)
    }

    fn address(&self) -> io::Result<Address> {
        let address: VsockAddr = getsockname(self.0.get_ref().as_raw_fd())?;
        Ok(Address::Vsock {
            cid: address.cid(),
            port: address.port(),
        })
    }

    async fn accept(&self) -> io::Result<Stream> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(sys::accept) {
                Ok(socket) => return Ok(Box::new(stream_of(socket?)?)),
                // The peer has disconnected before the accept.
                Err(_would_block) => {}
            }
        }
    }
}

/// A connected socket as a stream. Reading, writing and shutting down are the same calls for every
/// stream socket. Of the types with a constructor from a descriptor, the Unix one makes no other
/// calls.
fn stream_of(socket: OwnedFd) -> io::Result<UnixStream> {
    UnixStream::from_std(std::os::unix::net::UnixStream::from(socket))
}

/// Adds advice to errors that the kernel's text does not explain.
fn explained(errno: Errno) -> io::Error {
    let why = match errno {
        Errno::EAFNOSUPPORT => {
            "this kernel has no AF_VSOCK: load its modules (vsock, and in a guest vmw_vsock_virtio_transport) or listen on \
             TCP"
        }
        Errno::EADDRNOTAVAIL => {
            "this machine does not have that number: leave it out (vsock:PORT), or give the VM a vsock device"
        }
        Errno::ENODEV => {
            "no transport of AF_VSOCK leads there: load vhost_vsock on the host, and give the VM a vsock device of that number"
        }
        _ => return errno.into(),
    };
    io::Error::new(io::Error::from(errno).kind(), why)
}

#[cfg(test)]
mod tests {
    use test_records::{Missing, skip};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Context id of the machine itself, with a loopback transport.
    const LOCAL: u32 = 1;

    /// Requirement: N31
    #[test]
    fn addresses_of_both_transports_read_back() {
        for text in ["0.0.0.0:10369", "[::1]:1", "vsock:10369", "vsock:3:10301"] {
            let address = Address::parse(text).expect(text);
            assert_eq!(address.to_string(), text);
        }
        let any = Address::parse("vsock:0").expect("a free port");
        let (cid, port) = (Address::ANY, Address::ANY);
        assert_eq!(any, Address::Vsock { cid, port });
        for bad in [
            "",
            "nowhere",
            "10369",
            "vsock",
            "vsock:",
            "vsock:-1",
            "vsock:1:2:3",
            "vsock:x:1",
        ] {
            let error = Address::parse(bad).expect_err(bad);
            assert!(
                error.contains("such as") || error.contains("vsock:CID:PORT"),
                "{error}"
            );
        }
    }

    #[test]
    fn error_without_vsock_names_the_modules_to_load() {
        let error = explained(Errno::EAFNOSUPPORT).to_string();
        assert!(error.contains("vmw_vsock_virtio_transport"), "{error}");
        assert!(
            explained(Errno::EADDRNOTAVAIL)
                .to_string()
                .contains("vsock:PORT")
        );
        assert_eq!(
            explained(Errno::EADDRINUSE).kind(),
            io::ErrorKind::AddrInUse
        );
    }

    /// Requirement: N31
    #[tokio::test]
    async fn vsock_listener_has_a_port_and_carries_bytes_both_ways() {
        const TEST: &str = "vsock_listener_has_a_port_and_carries_bytes_both_ways";
        let address = Address::parse("vsock:0").expect("an address");
        let door = match Listener::bind(address).await {
            Ok(door) => door,
            Err(error) => return skip(TEST, Missing::Vsock, &format!("AF_VSOCK: {error}")),
        };
        let Ok(Address::Vsock { port, .. }) = door.address() else {
            panic!("{:?}", door.address());
        };
        assert_ne!(port, Address::ANY, "a port of its own");
        let taken = Listener::bind(Address::Vsock {
            cid: Address::ANY,
            port,
        })
        .await;
        assert_eq!(taken.expect_err("taken").kind(), io::ErrorKind::AddrInUse);

        let near = dial_vsock(LOCAL, port).await;
        let mut near = match near {
            Ok(near) => near,
            Err(error) => {
                let reason = format!("no loopback transport of AF_VSOCK: {error}");
                return skip(TEST, Missing::Vsock, &reason);
            }
        };
        let mut far = door.accept().await.expect("accepted");
        near.write_all(b"there").await.expect("written");
        let mut read = [0; 5];
        far.read_exact(&mut read).await.expect("read");
        far.write_all(&read).await.expect("written back");
        near.read_exact(&mut read).await.expect("read back");
        assert_eq!(&read, b"there");
    }
}
