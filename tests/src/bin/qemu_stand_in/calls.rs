//! System calls of a program in QEMU's place, as data. None of them does harm where it succeeds.
#![expect(
    unsafe_code,
    reason = "calls that no program should make have no safe form"
)]

use std::ffi::CStr;
use std::io;

use nix::errno::Errno;
use nix::libc::{self, c_long};

/// An address as an argument.
fn at<T: ?Sized>(value: &T) -> usize {
    std::ptr::from_ref(value).cast::<u8>() as usize
}

fn text(value: &'static CStr) -> usize {
    value.as_ptr() as usize
}

/// A small number that may be negative.
fn int(value: i32) -> usize {
    isize::try_from(value)
        .expect("a small number")
        .cast_unsigned()
}

fn flag(value: libc::c_int) -> usize {
    value.unsigned_abs() as usize
}

/// Makes a system call of `CALLS`.
///
/// # Errors
///
/// The kernel's error.
pub(super) fn run(name: &str) -> io::Result<()> {
    let (number, args) = found(name).expect("a call of the table");
    call(number, args)
}

fn found(name: &str) -> Option<Syscall> {
    kernel(name)
        .or_else(|| processes(name))
        .or_else(|| files(name))
        .or_else(|| privileges(name))
        .or_else(|| sockets(name))
}

type Syscall = (c_long, [usize; 5]);

fn call(number: c_long, args: [usize; 5]) -> io::Result<()> {
    let [a, b, c, d, e] = args;
    // SAFETY: the arguments are numbers, or addresses of values that live as long as the program. A
    // call that makes another process is followed by nothing but the end of that.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, 0_usize) };
    if result == 0 && matches!(number, libc::SYS_clone | libc::SYS_clone3) {
        // SAFETY: ends the new process at once.
        unsafe { libc::_exit(0) }
    }
    Errno::result(result)?;
    Ok(())
}

/// Parts of the kernel that faults are reached by.
fn kernel(name: &str) -> Option<Syscall> {
    let words = |words: &[u32]| at(Vec::leak(words.to_vec()));
    let call = match name {
        // An array of one value of four bytes.
        "bpf: make a map" => (libc::SYS_bpf, [0, words(&[2, 4, 4, 1]), 16, 0, 0]),
        "bpf: load a program" => {
            // `r0 = 0; exit`, for a socket.
            let program = words(&[0xb7, 0, 0x95, 0]);
            // Type 1 and two instructions are the two halves of the first word.
            let load = Vec::leak(vec![1 | 2 << 32, program, text(c"GPL")]);
            (libc::SYS_bpf, [5, at(load), 24, 0, 0])
        }
        // Of faults of the program alone, which needs no privilege.
        "userfaultfd" => (libc::SYS_userfaultfd, [1, 0, 0, 0, 0]),
        "perf_event_open" => {
            // The clock of the program itself, in user mode.
            let mut event = vec![0_u32; 16];
            (event[0], event[1], event[10]) = (1, 64, 1 | 1 << 5 | 1 << 6);
            (
                libc::SYS_perf_event_open,
                [words(&event), 0, int(-1), int(-1), 0],
            )
        }
        "io_uring_setup" => (libc::SYS_io_uring_setup, [8, words(&[0; 30]), 0, 0, 0]),
        "fanotify_init" => (libc::SYS_fanotify_init, [4, 0, 0, 0, 0]),
        // For the process itself, which needs no privilege.
        "add_key" => (
            libc::SYS_add_key,
            [text(c"user"), text(c"bellows"), text(c"x"), 1, int(-2)],
        ),
        "keyctl: a session" => (libc::SYS_keyctl, [1, 0, 0, 0, 0]),
        "kexec_load" => (libc::SYS_kexec_load, [0; 5]),
        "init_module" => (libc::SYS_init_module, [text(c"none"), 4, text(c""), 0, 0]),
        "delete_module" => (libc::SYS_delete_module, [text(c"none"), 0, 0, 0, 0]),
        "syslog: the kernel's log" => (libc::SYS_syslog, [3, words(&[0; 16]), 64, 0, 0]),
        // Without the numbers that make it one.
        "reboot" => (libc::SYS_reboot, [0; 5]),
        _ => return None,
    };
    Some(call)
}

/// Calls that create processes and namespaces.
fn processes(name: &str) -> Option<Syscall> {
    let user = flag(libc::CLONE_NEWUSER);
    let child = flag(libc::SIGCHLD);
    let call = match name {
        "unshare: a user namespace" => (libc::SYS_unshare, [user, 0, 0, 0, 0]),
        "clone: a user namespace" => (libc::SYS_clone, [user | child, 0, 0, 0, 0]),
        "clone3: a user namespace" => {
            let args = [user as u64, 0, 0, 0, child as u64, 0, 0, 0];
            (
                libc::SYS_clone3,
                [at(Vec::leak(args.to_vec())), 64, 0, 0, 0],
            )
        }
        "fork" => (libc::SYS_clone, [child, 0, 0, 0, 0]),
        _ => return None,
    };
    Some(call)
}

/// Mounts, and files by other than their names.
fn files(name: &str) -> Option<Syscall> {
    let here = int(libc::AT_FDCWD);
    let root = text(c"/");
    let call = match name {
        "open_by_handle_at" => {
            // Eight bytes of the first kind: file 2, which is the root of many file systems.
            let handle: [u32; 4] = [8, 1, 2, 0];
            let handle = at(Vec::leak(handle.to_vec()));
            (libc::SYS_open_by_handle_at, [here, handle, 0, 0, 0])
        }
        "mount" => (libc::SYS_mount, [text(c"none"), root, text(c"tmpfs"), 0, 0]),
        "umount" => (libc::SYS_umount2, [root, flag(libc::MNT_DETACH), 0, 0, 0]),
        "fsopen" => (libc::SYS_fsopen, [text(c"tmpfs"), 0, 0, 0, 0]),
        "open_tree" => (libc::SYS_open_tree, [here, root, 1, 0, 0]),
        "pivot_root" => (libc::SYS_pivot_root, [root, root, 0, 0, 0]),
        "chroot" => (libc::SYS_chroot, [root, 0, 0, 0, 0]),
        "make a disk's device" => {
            let mode = (libc::S_IFBLK | libc::S_IRWXU) as usize;
            let path = text(c"/dev/bellows-test");
            (libc::SYS_mknodat, [here, path, mode, 8 << 8, 0])
        }
        _ => return None,
    };
    Some(call)
}

/// Calls that need root.
fn privileges(name: &str) -> Option<Syscall> {
    let nothing = text(c"/dev/zero");
    let call = match name {
        "swapon" => (libc::SYS_swapon, [nothing, 0, 0, 0, 0]),
        "acct" => (libc::SYS_acct, [nothing, 0, 0, 0, 0]),
        "sethostname" => (libc::SYS_sethostname, [text(c"x"), 1, 0, 0, 0]),
        "clock_settime" => {
            let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |it| it.as_secs());
            let now = at(Vec::leak(vec![now, 0]));
            (libc::SYS_clock_settime, [0, now, 0, 0, 0])
        }
        "iopl" => (libc::SYS_iopl, [3, 0, 0, 0, 0]),
        "ioperm" => (libc::SYS_ioperm, [0x80, 1, 1, 0, 0]),
        "real-time priority" => {
            let priority = at(Vec::leak(vec![1_u32]));
            let policy = flag(libc::SCHED_FIFO);
            (libc::SYS_sched_setscheduler, [0, policy, priority, 0, 0])
        }
        "setuid: root" => (libc::SYS_setuid, [0; 5]),
        "setgroups: root" => (libc::SYS_setgroups, [1, at(&0_u32), 0, 0, 0]),
        _ => return None,
    };
    Some(call)
}

/// Sockets that no network namespace keeps apart, or that carry more than a connection.
fn sockets(name: &str) -> Option<Syscall> {
    let (stream, raw) = (libc::SOCK_STREAM, libc::SOCK_RAW);
    let (family, kind, protocol) = match name {
        // Every protocol, in the order of bytes of the network.
        "socket: frames" => (libc::AF_PACKET, raw, 0x300),
        "socket: packets" => (libc::AF_INET, raw, libc::IPPROTO_ICMP),
        "socket: virtual machines" => (libc::AF_VSOCK, stream, 0),
        "socket: netlink" => (libc::AF_NETLINK, raw, 0),
        "socket: the kernel's ciphers" => (libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
        "socket: bluetooth" => (libc::AF_BLUETOOTH, raw, 1),
        _ => return None,
    };
    let args = [flag(family), flag(kind), flag(protocol), 0, 0];
    Some((libc::SYS_socket, args))
}

pub(super) fn trace(pid: i32) -> io::Result<()> {
    // `PTRACE_SEIZE`
    call(libc::SYS_ptrace, [0x4206, int(pid), 0, 0, 0])
}

pub(super) fn read_memory(pid: i32) -> io::Result<()> {
    let there = at(Vec::leak(vec![0_usize, 8]));
    let here = at(Vec::leak(vec![at(Vec::leak(vec![0_u64])), 8]));
    call(libc::SYS_process_vm_readv, [int(pid), here, 1, there, 1])
}

/// An open file that stands for a process.
fn handle_of(pid: i32) -> io::Result<usize> {
    // SAFETY: takes two numbers.
    let file = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let file = Errno::result(file)?;
    usize::try_from(file).map_err(io::Error::other)
}

pub(super) fn take_file(pid: i32) -> io::Result<()> {
    call(libc::SYS_pidfd_getfd, [handle_of(pid)?, 0, 0, 0, 0])
}

pub(super) fn enter_namespaces(pid: i32) -> io::Result<()> {
    let kinds = flag(libc::CLONE_NEWNET);
    call(libc::SYS_setns, [handle_of(pid)?, kinds, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellows_tests::stand_in::CALLS;

    #[test]
    fn every_name_is_a_call() {
        for name in CALLS {
            assert!(found(name).is_some(), "{name}");
        }
    }
}
