//! Starting processes that either outlive this one or cannot.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context as _, Result};

use super::files::fresh_file;

/// Lifetime of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// As long as this process at most: the kernel kills them with it.
    WithUs,
    /// Until they are ended by their record.
    OnTheirOwn,
}

type Order = (Command, Sender<std::io::Result<Child>>);

/// Starts a program in `dir`. Its output goes to `log/<name>.log` there. The first word is the
/// program.
pub(crate) fn spawn(dir: &Path, name: &str, life: Lifetime, words: &[OsString]) -> Result<Child> {
    let log = fresh_file(&dir.join("log").join(format!("{name}.log")))?;
    let (program, args) = words.split_first().context("there is no program")?;
    let mut command = match life {
        Lifetime::OnTheirOwn => Command::new(program),
        Lifetime::WithUs => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL"]).arg(program);
            command
        }
    };
    command
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // Ctrl-C in the terminal must not reach them.
        .process_group(0);
    let (answer, answered) = channel();
    spawner()
        .send((command, answer))
        .context("the thread that starts processes is gone")?;
    let child = answered
        .recv()
        .context("the thread that starts processes is gone")?;
    child.with_context(|| format!("cannot start {}", program.display()))
}

/// A thread that never ends: to the kernel the parent of a process is the *thread* that started it,
/// and a test's ends with the test.
fn spawner() -> &'static Sender<Order> {
    static SPAWNER: OnceLock<Sender<Order>> = OnceLock::new();
    SPAWNER.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in orders {
                // The caller waits for the answer.
                let _heard = answer.send(command.spawn());
            }
        });
        sender
    })
}
