//! System calls that programs of an image may make.
//!
//! A list of what is allowed: those known when this was written, less those by which programs reach
//! for the kernel instead of files and processes. All others are answered `ENOSYS`, so that a C
//! library tries an older one, and the second numbering of x86-64 (x32) is refused with them.

use std::collections::BTreeMap;
use std::io::Write as _;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use tempfile::NamedTempFile;

use crate::error::{BuildError, IoContext};

/// Numbers known: up to `rseq`, and from `pidfd_send_signal` up to `set_mempolicy_home_node`.
const KNOWN: [std::ops::RangeInclusive<i64>; 2] =
    [0..=libc::SYS_rseq, libc::SYS_pidfd_send_signal..=450];

/// What no build needs: mounts, namespaces, other processes' memory, the kernel's own tables, and
/// doors that were opened by bugs in the past.
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

/// `clone` with any of these makes a namespace.
const NAMESPACES: libc::c_int = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// Families of sockets. A network namespace does not hold others, such as that of virtual machines.
const FAMILIES: [libc::c_int; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// The filter in a file that root alone may read, in the form that bubblewrap takes.
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
