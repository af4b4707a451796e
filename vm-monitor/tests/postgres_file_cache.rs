//! The file cache on a real PostgreSQL server, of whatever version this machine has.
//!
//! A stock server has no file cache of its own, so a setting that it has and that reloads
//! (`effective_cache_size`) stands in its place; everything from the wire to the configuration file
//! is as with the deployed one.
#![cfg(feature = "postgres")]

mod harness;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::{Agent, Files, GIB, Guest, MIB};
use protocol::monitor::MonitorBody;
use tempfile::TempDir;
use test_records::{Missing, skip};
use vm_monitor::core::cache::CacheMode;
use vm_monitor::core::file_cache::Sizing;
use vm_monitor::shell::config::{FileCache, Secret, SettingName};
use vm_monitor::{Bound, Config, RunError};

/// A server of our own on a socket in its own folder. Root may not run one, so it runs as
/// `postgres` or `nobody` then.
struct Server {
    folder: TempDir,
    programs: PathBuf,
    user: Option<&'static str>,
}

impl Server {
    /// Starts one; `None`, with the line that says so, on a machine without PostgreSQL's server.
    fn start(test: &str) -> Option<Self> {
        let Some(programs) = server_programs() else {
            skip(test, Missing::Postgres, "package postgresql");
            return None;
        };
        let folder = tempfile::Builder::new()
            .prefix("pg")
            .tempdir_in("/tmp")
            .expect("a folder");
        let user = nix::unistd::geteuid().is_root().then(server_user);
        if let Some(user) = user {
            let user = nix::unistd::User::from_name(user)
                .expect("readable")
                .expect("there");
            nix::unistd::chown(folder.path(), Some(user.uid), Some(user.gid)).expect("given");
        }
        let server = Self {
            folder,
            programs,
            user,
        };
        let data = server.data();
        let data = data.to_str().expect("a path");
        server.run(
            "initdb",
            &["-D", data, "-U", "postgres", "-A", "trust", "--no-sync"],
        );
        server.up();
        Some(server)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn up(&self) {
        let socket = self.folder.path().to_str().expect("a path").to_owned();
        let options =
            format!("-c listen_addresses='' -c unix_socket_directories='{socket}' -c fsync=off");
        self.control(&[
            "-w",
            "-o",
            &options,
            "-l",
            &format!("{socket}/log"),
            "start",
        ]);
    }

    fn down(&self) {
        self.control(&["-w", "-m", "fast", "stop"]);
    }

    fn control(&self, words: &[&str]) {
        let data = self.data();
        let mut all = vec!["-D", data.to_str().expect("a path")];
        all.extend(words);
        self.run("pg_ctl", &all);
    }

    fn run(&self, program: &str, words: &[&str]) {
        let path = self.programs.join(program);
        let mut command = match self.user {
            Some(user) => {
                let mut command = Command::new("runuser");
                command.args(["-u", user, "--"]).arg(path);
                command
            }
            None => Command::new(path),
        };
        let status = command
            .args(words)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(status.expect("started").success(), "{program} {words:?}");
    }

    fn file_cache(&self, mode: CacheMode, setting: &str) -> FileCache {
        let folder = self.folder.path().display();
        FileCache {
            mode,
            connection: Secret::new(format!("host={folder} user=postgres dbname=postgres")),
            setting: SettingName::parse(setting).expect("a name"),
            max_setting: SettingName::parse("neon.max_file_cache_size"),
            sizing: Sizing::default(),
        }
    }

    /// What `ALTER SYSTEM` has written.
    fn written(&self) -> String {
        std::fs::read_to_string(self.data().join("postgresql.auto.conf")).expect("readable")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.data().join("postmaster.pid").exists() {
            self.control(&["-w", "-m", "immediate", "stop"]);
        }
    }
}

fn server_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut folders: Vec<_> = versions
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    folders.push("/usr/bin".into());
    folders.sort();
    folders
        .into_iter()
        .find(|folder| folder.join("initdb").exists() && folder.join("pg_ctl").exists())
}

fn server_user() -> &'static str {
    match nix::unistd::User::from_name("postgres") {
        Ok(Some(_)) => "postgres",
        _ => "nobody",
    }
}

async fn guest(server: &Server, mode: CacheMode, setting: &str) -> Guest {
    let files = Files::new();
    let file_cache = Some(server.file_cache(mode, setting));
    let config = Config {
        file_cache,
        ..files.config()
    };
    Guest::with(files, config).await
}

async fn size_is(guest: &Guest, size: &str) {
    let is_so = |state: &serde_json::Value| state["file_cache"]["managed"]["size"] == size;
    guest.state_when(size, is_so).await;
}

async fn shrink(agent: &mut Agent, mem: u64) -> String {
    match agent.downscale(mem).await {
        MonitorBody::DownscaleResult { ok: true, status } => status,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn n28_the_file_cache_follows_the_guest() {
    let Some(server) = Server::start("n28_the_file_cache_follows_the_guest") else {
        return;
    };
    let guest = guest(&server, CacheMode::Auto, "effective_cache_size").await;
    let mut agent = guest.agent().await;
    // At the start, for the machine's own 4 GiB.
    size_is(&guest, "3Gi").await;
    assert!(
        server.written().contains("effective_cache_size = '3072MB'"),
        "{}",
        server.written()
    );
    guest.settle(100 * MIB).await;
    let status = shrink(&mut agent, GIB).await;
    assert!(
        status.starts_with("file cache limit set from 3072 MiB to 607 MiB; cgroup memory"),
        "{status}"
    );
    assert!(
        server.written().contains("effective_cache_size = '607MB'"),
        "{}",
        server.written()
    );
    assert_eq!(
        agent.upscale(8 * GIB).await,
        MonitorBody::UpscaleConfirmation
    );
    assert!(
        server.written().contains("effective_cache_size = '6069MB'"),
        "{}",
        server.written()
    );
    // So small that nothing is left for the cache: the least the setting takes.
    assert_eq!(
        agent.upscale(300 * MIB).await,
        MonitorBody::UpscaleConfirmation
    );
    assert!(
        server.written().contains("effective_cache_size = '1'"),
        "{}",
        server.written()
    );
    guest.stop().await;
}

#[tokio::test]
async fn a_lost_connection_is_made_again() {
    let Some(server) = Server::start("a_lost_connection_is_made_again") else {
        return;
    };
    let guest = guest(&server, CacheMode::Auto, "effective_cache_size").await;
    let mut agent = guest.agent().await;
    size_is(&guest, "3Gi").await;
    guest.settle(100 * MIB).await;
    server.down();
    server.up();
    let status = shrink(&mut agent, GIB).await;
    assert!(status.contains("to 607 MiB"), "{status}");
    // While it is away, its cache may be as large as ever: no shrink.
    server.down();
    let MonitorBody::InternalError { error } = agent.downscale(GIB).await else {
        panic!("approved without the database");
    };
    assert!(error.contains("the database cannot be reached"), "{error}");
    assert!(agent.is_alive().await);
    server.up();
    assert!(shrink(&mut agent, GIB).await.contains("to 607 MiB"));
    guest.stop().await;
}

#[tokio::test]
async fn a_stock_server_has_no_file_cache_and_auto_goes_on() {
    let Some(server) = Server::start("a_stock_server_has_no_file_cache_and_auto_goes_on") else {
        return;
    };
    let guest = guest(&server, CacheMode::Auto, "neon.file_cache_size_limit").await;
    let mut agent = guest.agent().await;
    guest.settle(100 * MIB).await;
    let absent = |state: &serde_json::Value| {
        state["file_cache"]["not_managed"]["why"]["no_such_setting"]["setting"]
            == "neon.file_cache_size_limit"
    };
    guest.state_when("not managed", absent).await;
    let status = shrink(&mut agent, GIB).await;
    assert!(
        status.starts_with("cgroup memory threshold set"),
        "{status}"
    );
    assert!(!server.written().contains("neon"), "{}", server.written());
    guest.stop().await;
}

#[tokio::test]
async fn on_does_not_start_without_the_setting() {
    let Some(server) = Server::start("on_does_not_start_without_the_setting") else {
        return;
    };
    let files = Files::new();
    let file_cache = Some(server.file_cache(CacheMode::On, "neon.file_cache_size_limit"));
    let config = Config {
        file_cache,
        ..files.config()
    };
    let bound = Bound::bind(&config).await.expect("free ports");
    let outcome = harness::soon(
        "refused",
        vm_monitor::run(config, bound, Default::default()),
    )
    .await;
    assert!(
        matches!(outcome, Err(RunError::FileCache(_))),
        "{outcome:?}"
    );
    assert!(Path::new(&server.data()).exists());
}

#[tokio::test]
async fn on_sets_the_size_before_any_agent_comes() {
    let Some(server) = Server::start("on_sets_the_size_before_any_agent_comes") else {
        return;
    };
    let guest = guest(&server, CacheMode::On, "effective_cache_size").await;
    guest.page("/readyz", 200).await;
    assert!(
        server.written().contains("effective_cache_size = '3072MB'"),
        "{}",
        server.written()
    );
    guest.stop().await;
}

#[tokio::test]
async fn missing_rights_fail_the_request_and_say_so() {
    let Some(server) = Server::start("missing_rights_fail_the_request_and_say_so") else {
        return;
    };
    let folder = server.folder.path().to_str().expect("a path").to_owned();
    server.run("createuser", &["-h", &folder, "-U", "postgres", "plain"]);
    let files = Files::new();
    let mut file_cache = server.file_cache(CacheMode::Auto, "effective_cache_size");
    file_cache.connection = Secret::new(format!("host={folder} user=plain dbname=postgres"));
    let config = Config {
        file_cache: Some(file_cache),
        ..files.config()
    };
    let guest = Guest::with(files, config).await;
    let mut agent = guest.agent().await;
    guest.settle(100 * MIB).await;
    let MonitorBody::InternalError { error } = agent.downscale(GIB).await else {
        panic!("approved without rights");
    };
    assert!(
        error.contains("the database refused") && error.contains("permission denied"),
        "{error}"
    );
    guest.stop().await;
}

/// The binary as the guest image runs it: one line about the missing setting, however many agents
/// come.
#[tokio::test]
async fn the_missing_setting_is_said_once() {
    let Some(server) = Server::start("the_missing_setting_is_said_once") else {
        return;
    };
    let folder = server.folder.path().display();
    let mut monitor = Command::new(env!("CARGO_BIN_EXE_vm-monitor"))
        .args(["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"])
        .args(["--pgconnstr", &format!("host={folder} user=postgres")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut line = String::new();
    let mut said = BufReader::new(monitor.stdout.take().expect("piped"));
    said.read_line(&mut line).expect("a line");
    let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let addr = said["listening"]["monitor"].as_str().expect("an address");
    let addr = addr.parse().expect("an address");
    for _ in 0..3 {
        let mut agent = Agent::connect(addr).await;
        // Answered after the attempt at the start of the connection.
        assert_eq!(
            agent.upscale(8 * GIB).await,
            MonitorBody::UpscaleConfirmation
        );
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(monitor.id()).expect("a process id"));
    nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).expect("sent");
    let output = monitor.wait_with_output().expect("ended");
    assert!(output.status.success());
    let log = String::from_utf8(output.stderr).expect("text");
    assert_eq!(log.matches("file cache is not managed").count(), 1, "{log}");
    assert!(
        log.contains("the database has no setting neon.file_cache_size_limit"),
        "{log}"
    );
}
