//! Programs that tests and demos bring into guests as parts: the monitor under a next version, and
//! parts with one fault each. All pass the self-test.

use std::ffi::OsStr;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use transport::{Address, Listener};
use vm_monitor::Bound;
use vm_monitor::shell::cli::{self, Task};
use vm_monitor::shell::exec::Inherited;
use vm_monitor::shell::self_test;

/// Which fault a monitor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is the monitor under another version.
    Sound,
    /// It takes 1 MiB of memory each second, and keeps it.
    Leaks,
    /// It does not listen where its agent dials.
    Deaf,
}

/// Whether the program is run for its self-test alone.
#[must_use]
pub fn is_self_test() -> bool {
    std::env::args().any(|word| word == "--self-test")
}

/// Prints `NAME VERSION` if that was asked for.
#[must_use]
pub fn tells_version(name: &str, version: &str) -> bool {
    let is_asked = std::env::args_os().any(|word| word == OsStr::new("--version"));
    if is_asked {
        // Nothing can be done about a closed standard output.
        let _ = writeln!(std::io::stdout(), "{name} {version}");
    }
    is_asked
}

/// Runs for this time without doing anything.
#[expect(
    clippy::disallowed_methods,
    reason = "these programs are to do nothing for a while"
)]
pub fn idle(time: Duration) {
    std::thread::sleep(time);
}

/// Serves as the monitor, with a fault.
#[must_use]
pub fn serve(name: &str, version: &str, fault: Fault) -> ExitCode {
    if tells_version(name, version) {
        return ExitCode::SUCCESS;
    }
    let Ok(invocation) = cli::parse(std::env::args_os()) else {
        return ExitCode::FAILURE;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return ExitCode::FAILURE;
    };
    let config = invocation.config;
    if invocation.task == Task::SelfTest {
        // The timer is registered with the runtime.
        let _entered = runtime.enter();
        return match self_test::run(&config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if fault == Fault::Leaks {
        std::thread::spawn(leak);
    }
    let served = runtime.block_on(async {
        let inherited = Inherited::take(config.addr);
        let mut bound = Bound::bind_or_take(&config, inherited).await.ok()?;
        bound.process = bound.process.with_digest();
        if fault == Fault::Deaf {
            let elsewhere = SocketAddr::from(([127, 0, 0, 1], 0));
            bound.monitor.door = Listener::bind(Address::Tcp(elsewhere)).await.ok()?;
        }
        let ends = CancellationToken::new();
        vm_monitor::run(config, bound, ends).await.ok()
    });
    served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn leak() {
    const PIECE: usize = 1 << 20;
    let mut kept = Vec::new();
    loop {
        // Written, so that the kernel has to provide it.
        kept.push(vec![1_u8; PIECE]);
        idle(Duration::from_secs(1));
    }
}
