//! `qemu-stand-in PID ATTEMPT`: replaces a QEMU and makes one attempt. Its status is 0 if the
//! attempt succeeds, and [`REFUSED`] with a reason if it is refused.
//!
//! It starts as root and then joins the confinement of the QEMU: namespaces, root directory, user,
//! no capability, and the same filters of system calls, which the kernel returns to a tracer.

#![expect(clippy::print_stdout, reason = "the reason is what it is run for")]
#![expect(clippy::expect_used, reason = "tests")]

use std::fs::File;
use std::io::{self, Read as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use bellows_tests::stand_in::{Attempt, REFUSED};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::kill;
use nix::unistd::{Gid, Pid, Uid, setgid, setgroups, setuid};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

mod calls;
mod filters;

fn main() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let pid = args.next().context("the number of a process")?;
    let attempt: Attempt = serde_json::from_str(&args.next().context("an attempt")?)?;
    take_the_place_of(pid.parse()?).context("take the place of QEMU")?;
    Ok(match tries(&attempt) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::from(REFUSED)
        }
    })
}

fn take_the_place_of(qemu: i32) -> Result<()> {
    let status = procfs::process::Process::new(qemu)?.status()?;
    let filters = filters::of(qemu).context("read the filters")?;
    let dir = format!("/proc/{qemu}/ns");
    let open = |kind: &str| File::open(Path::new(&dir).join(kind));
    for namespace in [open("ipc")?, open("uts")?, open("net")?, open("mnt")?] {
        setns(&namespace, CloneFlags::empty())?;
    }
    setgroups(&[])?;
    setgid(Gid::from_raw(status.egid))?;
    setuid(Uid::from_raw(status.euid))?;
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    set_capabilities(None, sets)?;
    // The oldest first: a later one may forbid to install any.
    for filter in filters.iter().rev() {
        filters::install(filter).context("install a filter")?;
    }
    Ok(())
}

fn tries(attempt: &Attempt) -> io::Result<()> {
    match attempt {
        Attempt::Create(path) => {
            let made = File::options().write(true).create_new(true).open(path);
            made.and_then(|_| std::fs::remove_file(path))
        }
        Attempt::Leave(path) => std::fs::write(path, "made"),
        Attempt::Read(path) => {
            let mut file = File::open(path)?;
            file.read(&mut [0; 16]).map(drop)
        }
        Attempt::Write(path) => File::options().write(true).open(path).map(drop),
        Attempt::Connect(address) => TcpStream::connect(address).map(drop),
        Attempt::ConnectUnix(path) => UnixStream::connect(path).map(drop),
        Attempt::Execute(path) => Err(Command::new(path).arg("--version").exec()),
        Attempt::Trace(pid) => calls::trace(*pid),
        Attempt::Signal(pid) => Ok(kill(Pid::from_raw(*pid), None)?),
        Attempt::ReadMemory(pid) => calls::read_memory(*pid),
        Attempt::TakeFile(pid) => calls::take_file(*pid),
        Attempt::EnterNamespaces(pid) => calls::enter_namespaces(*pid),
        Attempt::Call(name) => calls::run(name),
    }
}
