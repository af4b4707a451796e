//! The binary itself: its options, its exit codes, its end.

mod harness;

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use harness::Agent;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vm-monitor"));
    command.env_clear();
    command
}

fn run(arguments: &[&str]) -> Output {
    program().args(arguments).output().expect("started")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("not killed")
}

#[test]
fn usage_and_configuration_errors_are_64() {
    let output = run(&["--no-such-option"]);
    assert_eq!(code(&output), 64);
    let output = run(&["--addr=nowhere", "--cgroup=../up", "--file-cache=on"]);
    assert_eq!(code(&output), 64);
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(text.lines().count(), 3, "all at once: {text}");
    assert_eq!(code(&run(&["--help"])), 0);
    assert_eq!(code(&run(&["--version"])), 0);
}

#[test]
fn check_config_prints_values_with_their_origin() {
    let output = program()
        .args([
            "--check-config",
            "--cgroup",
            "db",
            "--pgconnstr",
            "host=h password=hunter2",
        ])
        .env("VM_MONITOR_METRICS_ADDR", "127.0.0.1:9101")
        .output()
        .expect("started");
    assert_eq!(code(&output), 0);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(!text.contains("hunter2"), "{text}");
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(shown["cgroup"]["origin"], "command line");
    assert_eq!(shown["metrics_addr"]["value"], "127.0.0.1:9101");
    assert_eq!(shown["metrics_addr"]["origin"], "environment");
    assert_eq!(shown["addr"]["origin"], "default");
}

#[test]
fn an_address_in_use_is_69() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = taken.local_addr().expect("bound").to_string();
    let output = run(&["--addr", &addr, "--metrics-addr=127.0.0.1:0"]);
    assert_eq!(code(&output), 69);
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(text.contains(&addr) && text.contains("in use"), "{text}");
}

/// Requirement: R21
#[test]
fn monitor_that_no_agent_dials_ends_with_75_if_its_options_say_so() {
    let none = ["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"];
    let output = run(&[none[0], none[1], "--exit-when-alone=1"]);
    assert_eq!(code(&output), 75, "{output:?}");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("no agent for 1 s"), "{log}");
    for bad in ["0", "604801", "5m", "-1"] {
        let option = format!("--exit-when-alone={bad}");
        assert_eq!(code(&run(&[none[0], none[1], &option])), 64, "{bad}");
    }
}

/// Images of NeonVM have a vector of their own at 9100.
#[tokio::test]
async fn taken_port_of_the_metrics_page_is_one_warning_and_agents_are_served() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let metrics = taken.local_addr().expect("bound").to_string();
    let mut running = Running::start(
        program()
            .args(["-a", "127.0.0.1:0", "-c", "neon-postgres"])
            .env("VM_MONITOR_METRICS_ADDR", &metrics),
    );
    let said = running.first_line();
    assert!(said["listening"]["metrics"].is_null(), "{said}");
    let addr = said["listening"]["monitor"].as_str().expect("an address");
    let mut agent = Agent::connect(addr.parse().expect("an address")).await;
    assert!(agent.is_alive().await);
    running.end_by(Signal::SIGTERM);
    let log = running.log();
    assert_eq!(
        log.matches("metrics page is not served").count(),
        1,
        "{log}"
    );
    assert!(
        log.contains(&metrics) && log.contains("--metrics-addr"),
        "{log}"
    );
}

#[cfg(feature = "postgres")]
#[test]
fn a_database_that_must_be_there_and_is_not_is_69() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .expect("a port")
        .local_addr()
        .expect("bound");
    let connection = format!("host=127.0.0.1 port={} user=nobody", closed.port());
    let output = run(&[
        "--addr=127.0.0.1:0",
        "--metrics-addr=127.0.0.1:0",
        "--file-cache=on",
        "--pgconnstr",
        &connection,
    ]);
    assert_eq!(code(&output), 69);
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(text.contains("cannot manage the file cache"), "{text}");
}

struct Running(Child);

impl Running {
    /// Starts a program whose output is read here.
    fn start(command: &mut Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("started"))
    }

    /// The line with the ports.
    fn first_line(&mut self) -> serde_json::Value {
        let mut lines = BufReader::new(self.0.stdout.take().expect("piped"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    /// Sends a signal, on which the program must end as after a drain.
    fn end_by(&mut self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("sent");
        assert_eq!(self.0.wait().expect("ended").code(), Some(0));
    }

    /// All that the program has logged, once it has ended.
    fn log(&mut self) -> String {
        let mut log = String::new();
        let mut lines = self.0.stderr.take().expect("piped");
        lines.read_to_string(&mut log).expect("text");
        log
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone already in a test that passes.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn n01_it_starts_alone_prints_its_ports_and_drains_on_sigterm() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut running =
            Running::start(program().args(["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"]));
        let said = running.first_line();
        for port in ["monitor", "metrics"] {
            let addr = said["listening"][port].as_str().expect("an address");
            std::net::TcpStream::connect(addr).expect("listening");
        }
        running.end_by(signal);
        let log = running.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}
