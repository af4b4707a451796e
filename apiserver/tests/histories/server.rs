//! A server that clients use while it is killed, held and starved of disk.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use futures::future::BoxFuture;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A server that suffers faults.
pub(crate) trait Server: Send + Sync {
    /// Its state directory.
    fn dir(&self) -> &Path;

    /// Where it listens now.
    fn base(&self) -> String;

    /// Brings about the fault of a number, and its end.
    fn suffer(&self, number: usize) -> BoxFuture<'_, ()>;
}

/// How long a fault lasts that is not over at once.
const FAULT: Duration = Duration::from_millis(200);

/// Where writes end in a store that is full: behind its header, so that commits fail half done.
const FULL_BYTES: &str = "65536";

/// The shipped program, in a process of its own. All that it has written stays when it is killed.
pub(crate) struct Process {
    dir: PathBuf,
    running: Mutex<(Child, String)>,
}

impl Process {
    pub(crate) fn start(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            running: Mutex::new(start(dir)),
        }
    }

    fn pid(&self) -> Pid {
        let running = self.running.lock().expect("no panic");
        Pid::from_raw(running.0.id().try_into().expect("a pid"))
    }

    /// `kill -9`, and a start on the same store.
    fn restart(&self) {
        let mut running = self.running.lock().expect("no panic");
        running.0.kill().expect("killed");
        running.0.wait().expect("ended");
        *running = start(&self.dir);
    }

    /// It stands still for a while.
    async fn hold(&self) {
        kill(self.pid(), Signal::SIGSTOP).expect("held");
        tokio::time::sleep(FAULT).await;
        kill(self.pid(), Signal::SIGCONT).expect("released");
    }

    /// Nothing more fits into its store for a while.
    async fn fill(&self) {
        self.limit(FULL_BYTES);
        tokio::time::sleep(FAULT).await;
        self.limit("unlimited");
    }

    /// The largest file it may write stands in for the room on the disk.
    fn limit(&self, bytes: &str) {
        let mut command = Command::new("prlimit");
        command.args([
            "--pid",
            &self.pid().to_string(),
            &format!("--fsize={bytes}:"),
        ]);
        assert!(command.status().expect("prlimit of util-linux").success());
    }
}

impl Server for Process {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn base(&self) -> String {
        self.running.lock().expect("no panic").1.clone()
    }

    fn suffer(&self, number: usize) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            match number % 3 {
                0 => self.restart(),
                1 => self.fill().await,
                _ => self.hold().await,
            }
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut running = self.running.lock().expect("no panic");
        running.0.kill().expect("killed");
        running.0.wait().expect("ended");
    }
}

fn start(dir: &Path) -> (Child, String) {
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_neonvm-apiserver"))
        .args(["--listen", "127.0.0.1:0", "--state-dir"])
        .arg(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let base = line
        .split_whitespace()
        .nth(1)
        .expect("an address")
        .to_owned();
    (child, base)
}
