//! What the worker gives up before it reads a policy. A breach of the interpreter then has nothing
//! to reach.
//!
//! * No environment: the program starts itself again without one.
//! * No more files, no processes, bounded memory. It ends with its parent.
//! * System calls: memory without execution, its standard input and outputs, and its own end. Any
//!   other call kills the process.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::libc;
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// Address space, bytes.
pub const MAX_ADDRESS_SPACE: u64 = 256 << 20;
/// Standard input and outputs.
const MAX_FILES: u64 = 3;

/// Calls that are allowed with any arguments.
const ALLOWED: [i64; 9] = [
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_rt_sigreturn,
];

/// Confines this process, which has one thread, for good.
///
/// # Errors
/// The kernel refuses a limit or the filter, or the program cannot start itself again.
pub fn enter() -> io::Result<()> {
    if std::env::vars_os().next().is_some() {
        let mut again = Command::new("/proc/self/exe");
        again.args(std::env::args_os().skip(1)).env_clear();
        return Err(again.exec());
    }
    // Maps draw their seed once, by a call that is forbidden later.
    drop(std::hash::RandomState::new());
    set_parent_process_death_signal(Some(Signal::KILL))?;
    lower(Resource::As, MAX_ADDRESS_SPACE)?;
    lower(Resource::Nofile, MAX_FILES)?;
    lower(Resource::Nproc, 0)?;
    lower(Resource::Core, 0)?;
    rustix::thread::set_no_new_privs(true)?;
    let program = filter().map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}

/// Sets a limit, or keeps a lower one.
fn lower(resource: Resource, limit: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.unwrap_or(u64::MAX).min(limit);
    let limits = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    Ok(setrlimit(resource, limits)?)
}

fn filter() -> Result<BpfProgram, BackendError> {
    // No rule means any arguments.
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    let is = |argument, value| condition(argument, SeccompCmpOp::Eq, value);
    let input = SeccompRule::new(vec![is(0, libc::STDIN_FILENO)?])?;
    rules.insert(libc::SYS_read, vec![input]);
    let outputs = [libc::STDOUT_FILENO, libc::STDERR_FILENO];
    let outputs = outputs.map(|output| SeccompRule::new(vec![is(0, output)?]));
    rules.insert(
        libc::SYS_write,
        outputs.into_iter().collect::<Result<_, _>>()?,
    );
    let (execute, anonymous) = (libc::PROT_EXEC, libc::MAP_ANONYMOUS);
    let has = |argument, flag: libc::c_int, value| {
        let mask = SeccompCmpOp::MaskedEq(u64::from(flag.unsigned_abs()));
        condition(argument, mask, value)
    };
    let data = vec![has(2, execute, 0)?, has(3, anonymous, anonymous)?];
    rules.insert(libc::SYS_mmap, vec![SeccompRule::new(data)?]);
    let machine = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(
        rules,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        machine,
    )?
    .try_into()
}

/// Condition on an argument of a call.
fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: libc::c_int,
) -> Result<SeccompCondition, BackendError> {
    let value = u64::from(value.unsigned_abs());
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}
