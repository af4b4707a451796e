//! Runs as a `RUN` line of an image build and attacks the machine that builds:
//! `tests/tests/attacks/image_author.rs`. It always fails, so that the build quotes its output.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::print_stderr, reason = "the build quotes it")]

use std::io;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::Pid;

/// Marks a line of the report.
const MARK: &str = "attempt:";

fn tries<T>(target: &str, how: &str, attempt: impl FnOnce() -> io::Result<T>) {
    let came = match attempt() {
        Ok(_) => "done".to_owned(),
        Err(error) => format!("refused {error}"),
    };
    // The build quotes the last 2 KiB of this, without host names.
    eprintln!("{MARK} {target} | {how} | {came}");
}

/// A variable that the image sets.
fn said(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn main() {
    let secret = said("SECRET");
    tries("a secret", "read", || std::fs::read(&secret));
    devices_and_mounts();
    sockets_and_processes();
    tries("a secret", "leave the root by chroot", || {
        leave_the_root()?;
        std::fs::read(&secret)
    });
    std::process::exit(1);
}

fn devices_and_mounts() {
    let none = None::<&str>;
    tries("a disk", "mknod", || {
        let device = makedev(8, 0);
        Ok(mknod("/tmp/disk", SFlag::S_IFBLK, Mode::S_IRWXU, device)?)
    });
    tries("/tmp", "mount", || {
        let flags = nix::mount::MsFlags::empty();
        Ok(nix::mount::mount(
            Some("none"),
            "/tmp",
            Some("tmpfs"),
            flags,
            none,
        )?)
    });
    tries("vm.swappiness", "write by a proc of its own", || {
        let flags = nix::mount::MsFlags::empty();
        // Earlier mounts may exist or not.
        let _ = nix::mount::mount(Some("none"), "/tmp", Some("proc"), flags, none);
        let path = "/tmp/sys/vm/swappiness";
        std::fs::read(path).and_then(|value| std::fs::write(path, value))
    });
}

fn sockets_and_processes() {
    tries("loopback", "connect", || {
        std::net::TcpStream::connect(said("HOST"))
    });
    tries("vsock", "open a socket", || {
        let flags = SockFlag::empty();
        Ok(socket(AddressFamily::Vsock, SockType::Stream, flags, None)?)
    });
    let process = Pid::from_raw(said("PROCESS").parse().unwrap());
    tries("a process of root", "ptrace", || {
        let options = nix::sys::ptrace::Options::empty();
        Ok(nix::sys::ptrace::seize(process, options)?)
    });
    tries("a process of root", "signal", || {
        Ok(nix::sys::signal::kill(process, None)?)
    });
    tries("namespaces", "unshare", || {
        Ok(nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?)
    });
}

/// `chroot` does not confine a process with an open directory outside.
fn leave_the_root() -> io::Result<()> {
    let outside = std::fs::File::open("/")?;
    std::fs::create_dir_all("/jail")?;
    std::os::unix::fs::chroot("/jail")?;
    nix::unistd::fchdir(&outside)?;
    for _ in 0..64 {
        std::env::set_current_dir("..")?;
    }
    std::os::unix::fs::chroot(".")
}
