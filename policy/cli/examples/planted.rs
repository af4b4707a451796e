//! A worker with a planted order, as if the interpreter had been breached: it confines itself as
//! the worker does, answers that it is ready, and then tries one forbidden call. For the test
//! `jail`.
//!
//! `planted ORDER` prints `ready`, and `survived` if the call returned, whatever it returned.

use std::io::Write as _;

use nix::libc;
use policy_cli::jail;

/// Orders by name, as the calls of the kernel that a C library would make.
const ORDERS: [(&str, i64); 24] = [
    ("open", libc::SYS_open),
    ("openat", libc::SYS_openat),
    ("socket", libc::SYS_socket),
    ("connect", libc::SYS_connect),
    ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat),
    ("ptrace", libc::SYS_ptrace),
    ("clone", libc::SYS_clone),
    ("clone3", libc::SYS_clone3),
    ("fork", libc::SYS_fork),
    ("vfork", libc::SYS_vfork),
    ("prctl", libc::SYS_prctl),
    ("kill", libc::SYS_kill),
    ("mprotect", libc::SYS_mprotect),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("bpf", libc::SYS_bpf),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("unlink", libc::SYS_unlink),
    ("mount", libc::SYS_mount),
    ("setns", libc::SYS_setns),
    ("memfd_create", libc::SYS_memfd_create),
    ("dup", libc::SYS_dup),
    ("getrandom", libc::SYS_getrandom),
];

fn main() {
    let order = std::env::args().nth(1).unwrap_or_default();
    if let Err(error) = jail::enter() {
        panic!("not confined: {error}");
    }
    say("ready");
    let known = ORDERS.iter().find(|(name, _)| *name == order);
    match (order.as_str(), known) {
        ("nothing", _) => {}
        // Through the standard library, as a program would.
        ("file", _) => drop(std::fs::read("/etc/hostname")),
        ("listen", _) => drop(std::net::TcpListener::bind("127.0.0.1:0")),
        ("thread", _) => drop(std::thread::Builder::new().spawn(|| ())),
        ("program", _) => drop(std::process::Command::new("/bin/true").status()),
        ("read_fd_3", _) => call(libc::SYS_read, [3, 0, 0, 0]),
        ("write_fd_3", _) => call(libc::SYS_write, [3, 0, 0, 0]),
        ("map_a_file", _) => call(
            libc::SYS_mmap,
            [0, 4096, libc::PROT_READ, libc::MAP_PRIVATE],
        ),
        ("map_code", _) => call(
            libc::SYS_mmap,
            [
                0,
                4096,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            ],
        ),
        (_, Some((_, number))) => call(*number, [0; 4]),
        (number, None) => match number.parse() {
            Ok(number) => call(number, [0; 4]),
            Err(_) => panic!("no order {number}"),
        },
    }
    say("survived");
    signal_hook::low_level::exit(0);
}

fn say(word: &str) {
    let mut output = std::io::stdout();
    if writeln!(output, "{word}")
        .and_then(|()| output.flush())
        .is_err()
    {
        signal_hook::low_level::exit(70);
    }
}

#[expect(
    unsafe_code,
    reason = "the calls of a breached process have no safe form"
)]
fn call(number: i64, arguments: [libc::c_int; 4]) {
    let [a, b, c, d] = arguments.map(i64::from);
    // SAFETY: the pointers are null. The kernel reads and writes nothing through them, and the
    // process ends right after the call.
    unsafe { libc::syscall(number, a, b, c, d, -1_i64, 0_i64) };
}
