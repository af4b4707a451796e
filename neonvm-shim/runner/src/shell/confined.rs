//! Starts programs without the runner's privileges. A guest that breaks out of its QEMU can do what
//! the owner of QEMU's files can, and no more.
//!
//! A child process inherits the privileges of the thread that starts it. So a thread gives up its
//! own, starts the program and ends. The program never has them.

use std::io;

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

use super::sandbox::Sandbox;

/// Capabilities of a program that serves ports below the unprivileged ones.
pub(super) fn low_ports(needed: bool) -> CapabilitySet {
    if needed {
        CapabilitySet::NET_BIND_SERVICE
    } else {
        CapabilitySet::empty()
    }
}

/// Starts `command` with no privileges but `keep`, which it has only if the runner is root.
///
/// # Errors
/// The program cannot be executed, or a privilege cannot be given up. Nothing was started.
pub(super) fn spawn(command: &mut Command, keep: CapabilitySet) -> io::Result<Child> {
    in_thread(|runtime| {
        give_up(keep)?;
        let _entered = runtime.enter();
        command.spawn()
    })
}

/// Starts `command` in a sandbox, as its user, without privileges.
///
/// # Errors
/// The program cannot be executed, or the sandbox cannot be entered. Nothing was started.
pub(super) fn spawn_in(command: &mut Command, sandbox: &Sandbox) -> io::Result<Child> {
    in_thread(|runtime| {
        sandbox.enter()?;
        // The new process changes its user, and then loses the rest.
        give_up(CapabilitySet::SETUID | CapabilitySet::SETGID)?;
        command.uid(sandbox.user).gid(sandbox.user);
        let _entered = runtime.enter();
        command.spawn()
    })
}

/// Whether a sandbox can be entered here.
///
/// # Errors
/// The step that failed.
pub(super) fn try_sandbox(sandbox: &Sandbox) -> io::Result<()> {
    in_thread(|_| sandbox.enter())
}

/// Runs a closure that changes its thread for good.
fn in_thread<T: Send>(work: impl FnOnce(&Handle) -> io::Result<T> + Send) -> io::Result<T> {
    let runtime = Handle::current();
    std::thread::scope(|scope| match scope.spawn(|| work(&runtime)).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Gives up all privileges of this thread and its future children, except `keep`.
pub(super) fn give_up(keep: CapabilitySet) -> io::Result<()> {
    // First: from here on no program has more privileges than its parent.
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        match capability_is_in_bounding_set(one) {
            Ok(true) if !keep.contains(one) => limit(one)?,
            Ok(_) => {}
            // The kernel has no capability of this number, nor of higher ones.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let keep = capabilities(None)?.permitted & keep;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(
        None,
        CapabilitySets {
            effective: keep,
            permitted: keep,
            inheritable: none,
        },
    )?)
}

/// Removes a capability from the bounding set.
fn limit(one: CapabilitySet) -> io::Result<()> {
    match remove_capability_from_bounding_set(one) {
        // A thread without the permission has no capabilities, and its programs cannot gain any.
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::process::Process;
    use std::process::Stdio;

    async fn status_of(keep: CapabilitySet) -> procfs::process::Status {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::null()).kill_on_drop(true);
        let child = spawn(&mut command, keep).unwrap();
        let pid = i32::try_from(child.id().unwrap()).unwrap();
        let process = Process::new(pid).unwrap();
        // Spawning waits until the program is executed, and so has its own file.
        process.status().unwrap()
    }

    #[tokio::test]
    async fn program_is_started_without_privileges_and_its_parent_keeps_them() {
        let before = capabilities(None).unwrap();
        let status = status_of(CapabilitySet::empty()).await;
        assert_eq!(
            (status.capeff, status.capprm, status.capinh, status.capamb),
            (0, 0, 0, Some(0))
        );
        let may_limit = before.effective.contains(CapabilitySet::SETPCAP);
        assert!(!may_limit || status.capbnd == Some(0), "{status:?}");
        assert_eq!(status.nonewprivs, Some(1));
        assert_eq!(capabilities(None).unwrap(), before);
    }

    #[tokio::test]
    async fn program_keeps_at_most_the_privilege_for_low_ports() {
        let low_ports = CapabilitySet::NET_BIND_SERVICE;
        let has = capabilities(None).unwrap().permitted & low_ports;
        let status = status_of(low_ports).await;
        let is_root = rustix::process::geteuid().is_root();
        let kept = if is_root { has.bits() } else { 0 };
        assert_eq!((status.capeff, status.capprm), (kept, kept));
        assert!(
            !is_root
                || status
                    .capbnd
                    .is_none_or(|bits| bits & !low_ports.bits() == 0)
        );
        assert_eq!(status.nonewprivs, Some(1));
    }
}
