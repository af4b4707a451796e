//! Networks for tests. Each is a network namespace that holds only what a test adds. It is
//! invisible outside, and ends with its last program, or with the test.

#![forbid(unsafe_code)]

pub mod http;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns, unshare};

/// Longest time for the answer of a server.
const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace. Needs root.
#[derive(Debug)]
pub struct Network(File);

impl Network {
    /// Makes one, with a loopback device that is switched on; `None` without root.
    ///
    /// # Errors
    /// When the kernel makes none.
    pub fn new() -> io::Result<Option<Self>> {
        if !nix::unistd::geteuid().is_root() {
            return Ok(None);
        }
        // A thread of its own enters it, and leaves an open file behind that keeps it.
        let made = thread::spawn(|| -> io::Result<File> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        let made = made
            .join()
            .map_err(|_| io::Error::other("a thread panicked"))?;
        let network = Self(made?);
        network.ip("link set lo up");
        Ok(Some(network))
    }

    /// Path of the namespace, valid while this value lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A command that runs in the network.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let network = format!("--net={}", self.path());
        command.arg(network).arg(program).stdin(Stdio::null());
        command
    }

    /// Output of `ip` with these arguments.
    ///
    /// # Panics
    ///
    /// If it fails. The message holds its error.
    pub fn ip(&self, words: &str) -> String {
        self.says("ip", words)
    }

    /// Output of a program with these arguments.
    ///
    /// # Panics
    ///
    /// If it fails. The message holds its error.
    pub fn says(&self, program: &str, words: &str) -> String {
        let output = self
            .command(program)
            .args(words.split_whitespace())
            .output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {words}: {complaint}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Lays a cable to another network, of these names at its ends, both switched on.
    pub fn cable(&self, name: &str, other: &Self, there: &str) {
        let path = other.path();
        self.ip(&format!(
            "link add {name} type veth peer name {there} netns {path}"
        ));
        self.ip(&format!("link set {name} up"));
        other.ip(&format!("link set {there} up"));
    }

    /// Response of an HTTP server in the network. Empty if there is none.
    #[must_use]
    pub fn fetches(&self, address: SocketAddr, path: &str) -> String {
        self.fetches_with(address, path, None)
    }

    /// Response of an HTTP server to a request with the token `bearer`.
    #[must_use]
    pub fn fetches_with(&self, address: SocketAddr, path: &str, bearer: Option<&str>) -> String {
        let shown = bearer.map(|token| format!("authorization: Bearer {token}\r\n"));
        let request = http::Request {
            line: &format!("GET {path}"),
            head: &shown.unwrap_or_default(),
            body: "",
        };
        self.connected(address, |stream| request.over(stream))
    }

    /// First line that a server in the network sends to a new connection. Empty if there is none.
    #[must_use]
    pub fn greeting(&self, address: SocketAddr) -> String {
        self.connected(address, |stream| {
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line)?;
            Ok(line)
        })
    }

    fn connected<F>(&self, address: SocketAddr, talk: F) -> String
    where
        F: FnOnce(TcpStream) -> io::Result<String> + Send,
    {
        let connect = || -> io::Result<String> {
            setns(&self.0, CloneFlags::CLONE_NEWNET)?;
            let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            talk(stream)
        };
        let answer = thread::scope(|scope| scope.spawn(connect).join());
        answer.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Whether an address answers within a second.
    #[must_use]
    pub fn reaches(&self, address: &str) -> bool {
        let mut ping = self.command("busybox");
        ping.args(["ping", "-c", "1", "-W", "1", address]);
        let status = ping.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }
}
