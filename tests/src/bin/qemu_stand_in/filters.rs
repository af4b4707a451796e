//! Filters of system calls, taken from one process and installed in another.
#![expect(
    unsafe_code,
    reason = "the kernel hands out filters by ptrace alone, and nix has no safe form of it"
)]

use std::io;

use nix::errno::Errno;
use nix::libc::{self, sock_filter, sock_fprog};
use nix::sys::ptrace;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

/// `PTRACE_SECCOMP_GET_FILTER`, which libc does not have.
const GET_FILTER: libc::c_uint = 0x420c;

/// The filters of a process, the newest first.
pub(super) fn of(process: i32) -> io::Result<Vec<Vec<sock_filter>>> {
    let pid = Pid::from_raw(process);
    ptrace::attach(pid)?;
    waitpid(pid, None)?;
    let filters = (0..)
        .map_while(|index| filter(process, index).transpose())
        .collect();
    ptrace::detach(pid, None)?;
    filters
}

/// `None` when there are fewer.
fn filter(process: i32, index: usize) -> io::Result<Option<Vec<sock_filter>>> {
    // SAFETY: without a buffer the kernel only counts the instructions.
    let length = unsafe { libc::ptrace(GET_FILTER, process, index, 0_usize) };
    let Ok(length) = usize::try_from(length) else {
        return match Errno::last() {
            Errno::ENOENT => Ok(None),
            error => Err(error.into()),
        };
    };
    let nothing = sock_filter {
        code: 0,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let mut filter = vec![nothing; length];
    // SAFETY: the buffer has room for the instructions, which were counted, and a filter that is
    // installed does not change.
    let read = unsafe { libc::ptrace(GET_FILTER, process, index, filter.as_mut_ptr()) };
    Errno::result(read)?;
    Ok(Some(filter))
}

/// Installs a filter in this thread.
pub(super) fn install(filter: &[sock_filter]) -> io::Result<()> {
    let program = sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads the program, which lives as long as the call, and writes nothing.
    let done = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    Errno::result(done)?;
    Ok(())
}
