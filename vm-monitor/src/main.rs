//! `vm-monitor`: the monitor as a program. See `vm-monitor --help`.

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};

use protocol::release::RELEASE;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use vm_monitor::shell::cli::{self, CliError, Invocation, Task};
use vm_monitor::shell::exec::Inherited;
use vm_monitor::shell::logging::{self, chain};
use vm_monitor::shell::self_test;
use vm_monitor::{Bound, Config, RunError};

/// How the process ends. 0 is a drain after a signal.
#[derive(Debug, Clone, Copy)]
enum Exit {
    /// Wrong usage or configuration.
    Config = 64,
    /// Something needed at the start is missing.
    Dependency = 69,
    /// A bug of ours.
    Bug = 70,
    /// No agent has come for as long as the options say.
    Alone = 75,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

fn main() -> ExitCode {
    // One VM, one monitor: after a bug a fresh start is better than half a monitor, so no panic is
    // survived.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::exit(Exit::Bug as i32);
    }));
    let invocation = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(CliError::Usage(error)) => {
            // Nothing can be done about a closed standard output.
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Config.into()
            } else {
                ExitCode::SUCCESS
            };
        }
        Err(CliError::Config(problems)) => {
            let _ = writeln!(std::io::stderr(), "{problems}");
            return Exit::Config.into();
        }
    };
    let Invocation {
        config,
        filter,
        origins,
        task,
    } = invocation;
    if task == Task::CheckConfig {
        say(&origins);
        return ExitCode::SUCCESS;
    }
    logging::init(filter);
    carry_out(task, config)
}

fn carry_out(task: Task, config: Config) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) if task == Task::SelfTest => {
            // The timer is registered with the runtime.
            let _entered = runtime.enter();
            test(&config)
        }
        // As a task of its own: the runtime asks the kernel for events before each turn of the
        // future that it blocks on, and the owner's turn comes before each answer.
        Ok(runtime) => runtime.block_on(async {
            let served = tokio::spawn(serve(config)).await;
            served.unwrap_or_else(|_| Exit::Bug.into())
        }),
        Err(error) => {
            tracing::error!(%error, "cannot start");
            Exit::Dependency.into()
        }
    }
}

/// Checks what the configuration names, in bounded time.
fn test(config: &Config) -> ExitCode {
    let (_running, ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if ended.recv_timeout(self_test::LIMIT) == Err(RecvTimeoutError::Timeout) {
            let limit = self_test::LIMIT.as_secs();
            let _ = writeln!(std::io::stderr(), "a check has not ended within {limit} s");
            std::process::exit(Exit::Dependency as i32);
        }
    });
    match self_test::run(config) {
        Ok(()) => {
            say(&json!({ "self_test": "passed", "version": RELEASE }));
            ExitCode::SUCCESS
        }
        Err(problems) => {
            let _ = writeln!(std::io::stderr(), "{}", problems.join("\n"));
            Exit::Dependency.into()
        }
    }
}

async fn serve(config: Config) -> ExitCode {
    // Before anyone can know that we are here, so that no signal finds us unprepared.
    let cancel = CancellationToken::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let Ok(mut signal) = signal(kind) else {
            return Exit::Dependency.into();
        };
        let cancel = cancel.clone();
        tokio::spawn(async move {
            signal.recv().await;
            cancel.cancel();
        });
    }
    let inherited = Inherited::take(config.addr);
    let bound = match Bound::bind_or_take(&config, inherited).await {
        Ok(bound) => Bound {
            process: bound.process.with_digest(),
            ..bound
        },
        Err(error) => {
            tracing::error!(error = chain(&error), "cannot start");
            return Exit::Dependency.into();
        }
    };
    let monitor = bound.monitor.door.address();
    let monitor = monitor.map_or_else(|_| String::new(), |addr| addr.to_string());
    let metrics = bound.metrics.as_ref().map(|listener| {
        let addr = listener.local_addr();
        addr.map_or_else(|_| String::new(), |addr| addr.to_string())
    });
    say(&json!({ "listening": { "monitor": monitor, "metrics": metrics } }));
    match vm_monitor::run(config, bound, cancel).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ RunError::Alone(_)) => {
            tracing::warn!(error = chain(&error), "ending, to be started again");
            Exit::Alone.into()
        }
        Err(error) => {
            tracing::error!(error = chain(&error), "cannot start");
            Exit::Dependency.into()
        }
    }
}

/// One machine-readable line on standard output.
fn say(value: &serde_json::Value) {
    // Whoever started us may not be listening.
    let _ = writeln!(std::io::stdout(), "{value}");
}
