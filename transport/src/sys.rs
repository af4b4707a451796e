//! The only file with `unsafe`: registers foreign descriptors with tokio's reactor, and takes an
//! accepted descriptor from the kernel.
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

/// Owners of one descriptor, which stays open and the same for their lifetime.
pub trait OwnsOne: AsFd {}

impl OwnsOne for TimerFd {}
impl OwnsOne for File {}
impl OwnsOne for OwnedFd {}

/// An owner inside the reactor. It can only be borrowed, neither moved out nor replaced.
#[derive(Debug)]
pub struct Registered<T>(T);

impl<T> Registered<T> {
    /// Borrows the owner of the registered descriptor.
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

/// Registers the descriptor of `owner` with the current runtime.
///
/// # Errors
/// The kernel cannot poll such a descriptor, or has reached its limit.
pub fn register<T: OwnsOne>(owner: T, interest: Interest) -> io::Result<AsyncFd<Registered<T>>> {
    // SAFETY: an `OwnsOne` keeps its one descriptor open until it is dropped, `Registered` lends it
    // by shared reference only, so neither can change, and the `AsyncFd` owns it for its whole
    // life.
    let registered = unsafe { AsyncFd::register_with_interest(Registered(owner), interest) };
    Ok(registered?)
}

/// Accepts the next connection of a listening socket.
///
/// # Errors
/// The kernel's error; `WouldBlock` when there is none.
pub fn accept(listener: &impl AsRawFd) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let accepted = accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: the kernel has just made this descriptor for us, and no other owner has its number.
    Ok(unsafe { OwnedFd::from_raw_fd(accepted) })
}
