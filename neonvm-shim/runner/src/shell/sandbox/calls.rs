//! Seccomp filter of a sandbox: forbidden system calls fail as if the kernel lacked them.
//!
//! QEMU's own filter (`-sandbox`) forbids more once it runs, such as starting a program. But it
//! allows calls that need no privilege under common kernel settings: userfaultfd, performance
//! events, keys, io_uring and other socket families. Many faults of the kernel are reached by
//! these.

use std::collections::BTreeMap;
use std::io;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, apply_filter,
};

/// Calls that are forbidden with any arguments.
const FORBIDDEN: [i64; 46] = [
    // Programs and settings of the kernel.
    libc::SYS_bpf,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_perf_event_open,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_settimeofday,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Asynchronous interfaces of the kernel.
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    // Keys, which no namespace separates.
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    // Access to other processes.
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    // Namespaces. A filter cannot read the flags of `clone3`; a C library then uses `clone`.
    libc::SYS_clone3,
    libc::SYS_setns,
    libc::SYS_unshare,
    // Mounts, and opening files by handles.
    libc::SYS_chroot,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_umount2,
];

/// Allowed socket families.
const FAMILIES: [libc::c_int; 3] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];

const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWUTS,
];

/// Installs the filter for this thread and its future children.
///
/// # Errors
/// The kernel accepts no filter, or the filter does not support this processor.
pub(super) fn forbid() -> io::Result<()> {
    let program = filter().map_err(io::Error::other)?;
    apply_filter(&program).map_err(|error| match error {
        Error::Prctl(error) | Error::Seccomp(error) => error,
        error => io::Error::other(error),
    })
}

fn filter() -> Result<BpfProgram, BackendError> {
    // No rule means any arguments.
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    let sockets = FAMILIES
        .iter()
        .map(|family| condition(SeccompCmpOp::Ne, *family));
    let sockets = SeccompRule::new(sockets.collect::<Result<_, _>>()?)?;
    rules.insert(libc::SYS_socket, vec![sockets]);
    let clones = NAMESPACES.iter().map(|flag| {
        let mask = u64::from(flag.unsigned_abs());
        SeccompRule::new(vec![condition(SeccompCmpOp::MaskedEq(mask), *flag)?])
    });
    rules.insert(libc::SYS_clone, clones.collect::<Result<_, _>>()?);
    let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let machine = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, absent, machine)?.try_into()
}

/// Condition on the first argument of a call.
fn condition(operator: SeccompCmpOp, value: libc::c_int) -> Result<SeccompCondition, BackendError> {
    let value = u64::from(value.unsigned_abs());
    SeccompCondition::new(0, SeccompCmpArgLen::Dword, operator, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    use nix::unistd::chroot;

    /// Runs a closure in a thread with the filter.
    fn without_calls<T: Send>(attempt: impl FnOnce() -> T + Send) -> T {
        let work = || {
            rustix::thread::set_no_new_privs(true).unwrap();
            forbid().unwrap();
            attempt()
        };
        std::thread::scope(|scope| scope.spawn(work).join()).unwrap()
    }

    #[test]
    fn forbidden_calls_fail_as_unknown() {
        let tried = without_calls(|| {
            let kind = (SockType::Stream, SockFlag::empty());
            [
                unshare(CloneFlags::CLONE_NEWUSER),
                chroot("/"),
                socket(AddressFamily::Vsock, kind.0, kind.1, None).map(drop),
            ]
        });
        assert_eq!(tried, [Err(Errno::ENOSYS); 3]);
    }

    #[test]
    fn threads_programs_and_local_sockets_are_allowed() {
        without_calls(|| {
            let kind = (SockType::Stream, SockFlag::empty());
            socket(AddressFamily::Unix, kind.0, kind.1, None).unwrap();
            socket(AddressFamily::Inet6, kind.0, kind.1, None).unwrap();
            std::thread::spawn(|| {}).join().unwrap();
            let ended = std::process::Command::new("true").status().unwrap();
            assert!(ended.success());
        });
    }
}
