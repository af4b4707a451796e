//! Runs the real `bellows`. Each test has its own state directory, cache and loopback block.

#![allow(dead_code, reason = "every test file uses some of it")]

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest time for anything on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// State directory, cache and loopback block of one test.
pub(crate) struct Site {
    root: tempfile::TempDir,
    pub(crate) block: u8,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self {
            root: tempfile::tempdir().expect("a temporary directory"),
            block: free_block(),
        }
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.root.path().join("cache")
    }

    /// A command on this site.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bellows"));
        command
            .args(arguments)
            .env("BELLOWS_STATE_DIR", self.state())
            .env("XDG_CACHE_HOME", self.cache())
            .env_remove("BELLOWS_GUEST_BIN_DIR")
            .env_remove("BELLOWS_UP_DETACHED")
            .env_remove("BELLOWS_LOG")
            .env_remove("RUST_LOG")
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bellows starts");
        Ran::of(arguments, output_within(child, PATIENCE))
    }

    /// Starts `up` and waits for its ready line.
    pub(crate) fn up(&self, more: &[&str]) -> Up {
        let block = self.block.to_string();
        let arguments: Vec<&str> = [
            "up",
            "--block",
            &block,
            "--node-name",
            "host-a",
            "--accel",
            "tcg",
        ]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
        let log = std::fs::File::create(self.root.path().join("up.stderr")).expect("a log");
        let mut child = self
            .command(&arguments)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("bellows starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (lines, first) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let line = first.recv_timeout(PATIENCE);
        let ready = match line.as_deref().map(serde_json::from_str::<Value>) {
            Ok(Ok(ready)) => ready,
            other => {
                let _ = child.kill();
                let log =
                    std::fs::read_to_string(self.root.path().join("up.stderr")).unwrap_or_default();
                panic!("bellows up is not ready: {other:?}\n{log}");
            }
        };
        Up {
            child: Some(child),
            ready,
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // A failed test must leave nothing behind, least of all a detached process.
        let _ = self
            .command(&["down", "--stop-vms"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

pub(crate) struct Up {
    child: Option<Child>,
    pub(crate) ready: Value,
}

impl Up {
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Ends it by a signal and returns its exit code.
    pub(crate) fn end(&mut self, signal: &str) -> Option<i32> {
        let child = self.child.take().expect("it runs");
        let status = Command::new("kill")
            .args([signal, &child.id().to_string()])
            .status()
            .expect("kill runs");
        assert!(status.success());
        output_within(child, PATIENCE).status.code()
    }

    /// Waits until it ends on its own.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        output_within(self.child.take().expect("it runs"), PATIENCE)
            .status
            .code()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) what: String,
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    fn of(arguments: &[&str], output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            what: arguments.join(" "),
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// Checks the exit code, and that each of `words` is in standard error.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(self.err.starts_with("error: "), "{self:#?}");
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in {self:#?}");
        }
        self
    }

    /// Checks that the exit code is 0.
    #[track_caller]
    pub(crate) fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Standard output, parsed as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Waits for the end of a process. One that does not end in time is killed and fails the test.
fn output_within(mut child: Child, patience: Duration) -> Output {
    let drain = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let stdout = drain(
        child
            .stdout
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
    );
    let stderr = drain(
        child
            .stderr
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
    );
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("not ended after {patience:?}");
        }
        std::thread::park_timeout(Duration::from_millis(20));
    };
    Output {
        status,
        stdout: stdout.join().expect("reads"),
        stderr: stderr.join().expect("reads"),
    }
}

/// Polls until `look` returns a value.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// A loopback block without listeners that no other test of this process uses. The search connects
/// and does not listen: another test's forked child would keep a listener alive.
fn free_block() -> u8 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..200 {
        let number = std::process::id()
            .wrapping_mul(31)
            .wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let block = u8::try_from(number % 240 + 5).expect("below 245");
        let listens = |(last, port)| {
            TcpStream::connect(SocketAddr::from(([127, block, 0, last], port))).is_ok()
        };
        if ![(1, 6443), (1, 8080), (2, 10299)].into_iter().any(listens) {
            return block;
        }
    }
    panic!("no free loopback block");
}

/// Whether only the owner has access to a path.
pub(crate) fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|meta| meta.permissions().mode() & 0o077 == 0)
}
