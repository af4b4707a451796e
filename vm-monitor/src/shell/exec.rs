//! Execution of another program in this process. It keeps process id, user, cgroup and listeners.
//!
//! The listeners go to numbers in a row, which `LISTEN_FDS` and `LISTEN_FDS_FIRST_FD` name: the
//! agents' listener, the control socket, and the metrics page if it is served. Dials wait in their
//! queues meanwhile.

use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::io;
use std::net::TcpListener;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use listenfd::ListenFd;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::socket::AddressFamily;
use nix::unistd::{close, execve};
use transport::{Address, BoundSocket};

/// Variable with the number of programs that the process has executed. The manager of a service
/// does not set it, so sockets of a manager are not taken for ours.
const EXECS: &str = "VM_MONITOR_EXECS";
/// Variables that describe listeners to the next program.
const COUNT: &str = "LISTEN_FDS";
const FIRST: &str = "LISTEN_FDS_FIRST_FD";
/// Variable that names another receiver of the listeners.
const RECEIVER: &str = "LISTEN_PID";
/// Lowest descriptor of a listener for the next program.
const LOWEST: RawFd = 64;
/// `SOCK_STREAM` of Linux.
const STREAM: i32 = 1;

/// Listeners and figures from the program that ran in this process before.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Times that the process has executed a program.
    pub execs: u64,
    /// The agents' listener.
    pub(crate) agents: Option<BoundSocket>,
    /// The control socket's listener.
    pub(crate) control: Option<UnixListener>,
    /// The metrics page's listener.
    pub(crate) metrics: Option<TcpListener>,
}

impl Inherited {
    /// Takes what an earlier program has left, for a configuration with this address. Nothing in a
    /// process that has executed none. A listener that does not fit is bound again.
    #[must_use]
    pub fn take(addr: Address) -> Self {
        let execs = std::env::var(EXECS).ok().and_then(|text| text.parse().ok());
        let Some(execs) = execs.filter(|execs| *execs > 0) else {
            return Self::default();
        };
        let mut sockets = ListenFd::from_env();
        let agents = match addr {
            Address::Tcp(_) => sockets
                .take_tcp_listener(0)
                .map(|socket| socket.map(BoundSocket::Tcp)),
            Address::Vsock { .. } => sockets
                .take_custom(0, AddressFamily::Vsock as i32, STREAM, "vsock socket")
                .map(|socket| socket.map(BoundSocket::Vsock)),
        };
        Self {
            execs,
            agents: agents.ok().flatten(),
            control: sockets.take_unix_listener(1).ok().flatten(),
            metrics: sockets.take_tcp_listener(2).ok().flatten(),
        }
    }
}

/// Listeners for the next program, in the order of [`Inherited`].
#[derive(Debug)]
pub(crate) struct Heirloom {
    pub(crate) listeners: Vec<OwnedFd>,
    pub(crate) execs: u64,
}

impl Heirloom {
    /// Executes a program with this process's arguments and environment. Returns only the error.
    pub(super) fn execute(&self, program: &Path) -> io::Error {
        let Err(error) = self.attempt(program);
        error
    }

    fn attempt(&self, program: &Path) -> io::Result<Infallible> {
        let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::other);
        let path = text(program.as_os_str())?;
        let arguments = std::env::args_os().map(|argument| text(&argument));
        let arguments = arguments.collect::<io::Result<Vec<_>>>()?;
        let copies = in_a_row(&self.listeners)?;
        let outcome = self
            .environment(&copies)
            .and_then(|environment| Ok(execve(&path, &arguments, &environment)?));
        close_all(&copies);
        outcome
    }

    /// This process's environment, with the listeners' numbers.
    fn environment(&self, copies: &[RawFd]) -> io::Result<Vec<CString>> {
        let ours = [EXECS, COUNT, FIRST, RECEIVER];
        let kept = std::env::vars_os().filter(|(name, _)| !ours.iter().any(|own| name == own));
        let mut variables: Vec<Vec<u8>> = kept
            .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
            .collect();
        let execs = self.execs.saturating_add(1);
        let first = copies.first().copied().unwrap_or_default();
        variables.push(format!("{EXECS}={execs}").into_bytes());
        variables.push(format!("{COUNT}={}", copies.len()).into_bytes());
        variables.push(format!("{FIRST}={first}").into_bytes());
        let variables = variables.into_iter().map(CString::new);
        variables
            .collect::<Result<_, _>>()
            .map_err(io::Error::other)
    }
}

/// Copies of descriptors with consecutive numbers, which stay open in the next program.
fn in_a_row(descriptors: &[OwnedFd]) -> Result<Vec<RawFd>, Errno> {
    let mut lowest = LOWEST;
    loop {
        let mut copies: Vec<RawFd> = Vec::with_capacity(descriptors.len());
        let is_row = descriptors.iter().try_fold(true, |is_row, descriptor| {
            let next = copies.last().map_or(lowest, |last| last + 1);
            let copy = fcntl(descriptor, FcntlArg::F_DUPFD(next))?;
            let follows = copies.is_empty() || copy == next;
            copies.push(copy);
            Ok::<_, Errno>(is_row && follows)
        });
        match is_row {
            Ok(true) => return Ok(copies),
            // Another descriptor lies between them. Numbers above the last copy are tried.
            Ok(false) => lowest = copies.last().map_or(lowest, |last| last + 1),
            Err(errno) => {
                close_all(&copies);
                return Err(errno);
            }
        }
        close_all(&copies);
    }
}

fn close_all(copies: &[RawFd]) {
    for copy in copies {
        // A failure leaves a descriptor open, which harms nothing.
        let _ = close(*copy);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn copies_have_numbers_in_a_row_beside_other_descriptors() {
        let null = || OwnedFd::from(File::open("/dev/null").expect("opened"));
        let listeners = [null(), null(), null()];
        // Held between the numbers that would be taken first.
        let between = fcntl(&listeners[0], FcntlArg::F_DUPFD_CLOEXEC(LOWEST + 1)).expect("copied");
        let copies = in_a_row(&listeners).expect("copied");
        for (copy, next) in copies.iter().zip(&copies[1..]) {
            assert_eq!(copy + 1, *next, "{copies:?}");
        }
        assert!(!copies.contains(&between) && copies[0] >= LOWEST);
        assert!(!copies.contains(&listeners[0].as_raw_fd()));
        close_all(&copies);
        close_all(&[between]);
    }
}
