//! The one place with `unsafe`: handing descriptors that tokio does not know to its reactor, and
//! taking one from the kernel.
#![expect(
    unsafe_code,
    reason = "tokio has no safe way to register a descriptor, nix gives an accepted one as a number"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, OwnedFd, RawFd};

use nix::sys::socket::{SockFlag, accept4};
use nix::sys::timerfd::TimerFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Owners of one descriptor, which stays open and the same as long as they live and are only
/// borrowed.
pub trait OwnsOne: AsFd {}

impl OwnsOne for TimerFd {}
impl OwnsOne for File {}
impl OwnsOne for OwnedFd {}

/// An owner inside the reactor. It cannot be taken out or exchanged, only borrowed.
#[derive(Debug)]
pub struct Registered<T>(T);

impl<T> Registered<T> {
    /// The owner.
    #[must_use]
    pub const fn get(&self) -> &T {
        &self.0
    }
}

impl<T: OwnsOne> AsRawFd for Registered<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Lets the current runtime wait for the descriptor of `owner`.
///
/// # Errors
/// When the kernel cannot wait for such a descriptor, or for no more of them.
pub fn register<T: OwnsOne>(owner: T, interest: Interest) -> io::Result<AsyncFd<Registered<T>>> {
    // SAFETY: an `OwnsOne` keeps its one descriptor open until it is dropped, `Registered` gives it
    // out by shared reference only, so neither can change, and the `AsyncFd` owns it for its whole
    // life.
    let registered = unsafe { AsyncFd::register_with_interest(Registered(owner), interest) };
    Ok(registered?)
}

/// The next connection of a listening socket.
///
/// # Errors
/// What the kernel says; `WouldBlock` when there is none.
pub fn accept(listener: &impl AsRawFd) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let accepted = accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else has its number.
    Ok(unsafe { OwnedFd::from_raw_fd(accepted) })
}
