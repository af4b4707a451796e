//! Addresses in use on this machine, and the processes that use them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};
use procfs::net::TcpState;
use procfs::process::{FDTarget, all_processes};

use crate::fail::Fail;

/// Values of N of the blocks 127.N.0.0/16 with a listener, ascending.
pub(crate) fn blocks_in_use() -> Vec<u8> {
    let mut blocks: Vec<u8> = listeners()
        .iter()
        .filter_map(|(address, _)| block_of(address.ip()))
        .collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

fn block_of(address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(v4) if v4.is_loopback() => Some(v4.octets()[1]),
        _ => None,
    }
}

/// Listening TCP sockets and their inodes. An unreadable entry counts as free, because binding
/// checks it again.
fn listeners() -> Vec<(SocketAddr, u64)> {
    let entries = procfs::net::tcp().unwrap_or_default().into_iter();
    entries
        .chain(procfs::net::tcp6().unwrap_or_default())
        .filter(|entry| entry.state == TcpState::Listen)
        .map(|entry| (entry.local_address, entry.inode))
        .collect()
}

/// Checks that an address can be bound. The failure names the process that uses it.
///
/// # Errors
///
/// 75 if another process listens there, 69 if the address does not exist on this machine.
pub(crate) fn check_free(address: SocketAddr, what: &str, fix: &str) -> Result<(), Fail> {
    let error = match try_binding(address) {
        Ok(_) => return Ok(()),
        Err(error) => io::Error::from(error),
    };
    Err(match error.kind() {
        io::ErrorKind::AddrInUse => {
            let who = owner_of(address).unwrap_or_else(|| "another process".into());
            Fail::try_again(format!("{address} is taken by {who}"))
                .rule(format!("{what} listens there"))
                .fix(fix)
        }
        io::ErrorKind::AddrNotAvailable => {
            Fail::missing(format!("{address} is not an address of this machine"))
                .rule(format!(
                    "{what} listens there; Linux routes all of 127.0.0.0/8 to the loopback device"
                ))
                .fix("bring the loopback device up: ip link set lo up")
        }
        _ => Fail::missing(format!("{address} cannot be listened on: {error}"))
            .rule(format!("{what} listens there"))
            .fix(fix),
    })
}

/// Binds without listening. A forked child may hold a copy of the socket until it executes its
/// program, and a listening copy would keep the address in use.
fn try_binding(address: SocketAddr) -> nix::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(socket)
}

/// The process that listens on an address, as `process 4711 (nginx)`.
fn owner_of(address: SocketAddr) -> Option<String> {
    let taken = |listening: SocketAddr| {
        listening == address
            || (listening.port() == address.port() && listening.ip().is_unspecified())
    };
    let inode = listeners()
        .into_iter()
        .find(|(listening, _)| taken(*listening))?
        .1;
    for process in all_processes().ok()?.flatten() {
        let Ok(files) = process.fd() else { continue };
        let holds = files
            .flatten()
            .any(|file| matches!(file.target, FDTarget::Socket(found) if found == inode));
        if holds {
            let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
            return Some(format!("process {} ({name})", process.pid));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_taken_port_names_its_holder_and_its_block() {
        let listener = TcpListener::bind("127.231.77.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(blocks_in_use().contains(&231));
        let fail = check_free(address, "the test", "do").unwrap_err();
        assert_eq!(fail.exit() as u8, 75);
        let me = format!("is taken by process {} (", std::process::id());
        assert!(fail.what().contains(&me), "{fail}");
    }

    #[test]
    fn probe_of_an_address_does_not_occupy_it_after_a_fork() {
        let address = SocketAddr::from(([127, 232, 77, 1], 1077));
        let kept = try_binding(address).unwrap();
        check_free(address, "the test", "do").unwrap();
        assert!(!blocks_in_use().contains(&232));
        drop(TcpListener::bind(address).unwrap());
        drop(kept);
    }

    #[test]
    fn a_foreign_address_is_missing() {
        let fail = check_free("192.0.2.1:80".parse().unwrap(), "the test", "do").unwrap_err();
        assert_eq!(fail.exit() as u8, 69);
        assert!(fail.to_string().contains("ip link set lo up"), "{fail}");
    }
}
