//! System calls that programs of an image may make.
//!
//! The list allows the calls known today, without those that reach the kernel instead of files and
//! processes. All others return `ENOSYS`, so that a C library tries an older call. The second
//! numbering of x86-64 (x32) is refused as well.

use std::collections::BTreeMap;
use std::io::Write as _;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use tempfile::NamedTempFile;

use crate::error::{BuildError, IoContext};

/// Known numbers: up to `rseq`, and from `pidfd_send_signal` to `set_mempolicy_home_node`.
const KNOWN: [std::ops::RangeInclusive<i64>; 2] =
    [0..=libc::SYS_rseq, libc::SYS_pidfd_send_signal..=450];

/// Calls that no build needs: mounts, namespaces, memory of other processes, kernel tables, and
/// frequent targets of exploits.
const DENIED: &[i64] = &[
    libc::SYS__sysctl,
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    // Its flags are in memory, where a filter cannot read them.
    libc::SYS_clone3,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_uselib,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Flags of `clone` that create a namespace.
const NAMESPACES: libc::c_int = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// Allowed families of sockets. A network namespace does not confine others, such as that of
/// virtual machines.
const FAMILIES: [libc::c_int; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// Writes the filter for bubblewrap to a file that only root can read.
pub(super) fn file() -> Result<NamedTempFile, BuildError> {
    let dir = std::env::temp_dir();
    let mut file = NamedTempFile::new().at("create a file in", &dir)?;
    let program = program().map_err(|error| BuildError::Unconfined {
        why: format!("the filter of system calls cannot be made: {error}"),
    })?;
    let mut bytes = Vec::new();
    for instruction in program {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    let path = file.path().to_owned();
    file.write_all(&bytes).at("write", &path)?;
    Ok(file)
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let allowed = KNOWN.into_iter().flatten();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = allowed
        .filter(|number| !DENIED.contains(number))
        .map(|number| (number, Vec::new()))
        .collect();
    let mask = u64::from(NAMESPACES.cast_unsigned());
    let no_namespace = first_argument(SeccompCmpOp::MaskedEq(mask), 0)?;
    rules.insert(libc::SYS_clone, vec![no_namespace]);
    for number in [libc::SYS_socket, libc::SYS_socketpair] {
        let each = FAMILIES
            .iter()
            .map(|family| first_argument(SeccompCmpOp::Eq, u64::from(family.cast_unsigned())));
        rules.insert(number, each.collect::<Result<_, _>>()?);
    }
    let refused = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    SeccompFilter::new(rules, refused, SeccompAction::Allow, TargetArch::x86_64)?.try_into()
}

fn first_argument(is: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        is,
        value,
    )?])
}
