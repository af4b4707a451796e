//! A breached worker is killed by whatever it tries; one that tries nothing lives.

use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use nix::libc;

const ORDERS: [&str; 32] = [
    "open",
    "openat",
    "socket",
    "connect",
    "execve",
    "execveat",
    "ptrace",
    "clone",
    "clone3",
    "fork",
    "vfork",
    "prctl",
    "kill",
    "mprotect",
    "process_vm_readv",
    "io_uring_setup",
    "bpf",
    "userfaultfd",
    "unlink",
    "mount",
    "setns",
    "memfd_create",
    "dup",
    "getrandom",
    "file",
    "listen",
    "thread",
    "program",
    "read_fd_3",
    "write_fd_3",
    "map_a_file",
    "map_code",
];

/// The calls that a worker needs, by number.
const ALLOWED: [i64; 12] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_rt_sigreturn,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_exit,
    libc::SYS_clock_gettime,
    libc::SYS_exit_group,
];
/// Probes of functions: the kernel handles both before it looks at a filter. Neither does anything
/// where no probe is set.
const PROBES: [i64; 2] = [335, 336];
/// Numbers of calls on x86-64, some not given.
const LAST_CALL: i64 = 470;

/// The example beside this test's program.
fn planted() -> PathBuf {
    let mut path = std::env::current_exe().expect("this program");
    path.pop();
    path.pop();
    path.join("examples/planted")
}

fn run(order: &str) -> (ExitStatus, String) {
    let mut child = Command::new(planted())
        .arg(order)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the example is built beside this test");
    let mut said = String::new();
    let output = child.stdout.as_mut().expect("its output");
    output.read_to_string(&mut said).expect("text");
    (child.wait().expect("its end"), said)
}

#[test]
fn v03_worker_that_tries_nothing_lives() {
    let (status, said) = run("nothing");
    assert!(status.success(), "{status}");
    assert_eq!(said, "ready\nsurvived\n");
}

#[test]
fn v03_every_planted_order_is_killed() {
    for order in ORDERS {
        let (status, said) = run(order);
        assert_eq!(status.signal(), Some(libc::SIGSYS), "{order}: {status}");
        assert_eq!(said, "ready\n", "{order}");
    }
}

#[test]
fn v03_every_other_call_of_the_kernel_is_killed() {
    let is_tried = |number: &i64| !ALLOWED.contains(number) && !PROBES.contains(number);
    for number in (0..LAST_CALL).filter(is_tried) {
        let (status, said) = run(&number.to_string());
        assert_eq!(status.signal(), Some(libc::SIGSYS), "{number}: {status}");
        assert_eq!(said, "ready\n", "{number}");
    }
}
