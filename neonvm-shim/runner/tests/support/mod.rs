//! A runner with a real QEMU and a real guest from the image store. If a part is missing, the test
//! is skipped with one line.

#![allow(dead_code, reason = "each test binary uses its own part of the kit")]
#![allow(
    unreachable_pub,
    reason = "a module of test binaries, which export nothing"
)]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use daemon_kit::http_client::{HttpError, over_unix};
use hyper::Method;
use neonvm_runner::config::{
    AccelChoice, BootImage, CONFIG_FORMAT, GuestNetwork, Programs, RunnerConfig,
};
use neonvm_runner::core::guestd_key::GuestdKey;
use neonvm_runner::core::paths::Paths;
use neonvm_runner::node::Store;
use neonvm_runner::shell::guest::Daemon;
use neonvm_runner::shell::record::write_json;
use protocol::disk_cache::DiskCache;
use protocol::quantity::Quantity;
use protocol::runner::{ExitReport, GUESTD_FORWARD, RunnerPhase, RunnerState, SizeOrder};
use protocol::trace::TraceId;
use protocol::units::{Bytes, MilliCpu};
use protocol::vm::{CpuBounds, CpuScalingMode, MemorySlots, VmSpec};
use test_network::Network;
use test_records::retry::{blame, known_tcg_bug_in, retry_known_tcg_bug};
use test_records::{Missing, skip};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, MutexGuard};

/// Longest wait for the guest. Hosts without KVM translate every instruction, and share their CPUs.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Images to boot, the smallest first.
const GUESTS: [&str; 2] = ["bellows/minimal", "bellows/postgres:15"];

/// One guest at a time: two would only delay each other.
static TURN: Mutex<()> = Mutex::const_new(());

/// Programs and an image to boot.
pub struct Kit {
    pub programs: Programs,
    pub image: BootImage,
    _turn: MutexGuard<'static, ()>,
}

/// The kit. If a part is missing, the test is recorded as skipped.
pub async fn kit(test: &str) -> Option<Kit> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty());
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = cache.map(PathBuf::from).or(home).unwrap_or_default();
    let store = Store::new(cache.join("bellows/store"));
    let found = store.programs().and_then(|programs| {
        let image = store.guest(GUESTS[0]).or_else(|_| store.guest(GUESTS[1]))?;
        Ok((programs, image))
    });
    match found {
        Ok((programs, image)) => Some(Kit {
            programs,
            image,
            _turn: TURN.lock().await,
        }),
        Err(error) => {
            skip(test, Missing::Guest, &error.to_string());
            None
        }
    }
}

/// Address for a test of this process: two test binaries never run with the same process id at
/// once.
pub fn address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let id = std::process::id();
    let byte = |shift: u32| u8::try_from((id >> shift) & 0xff).expect("a byte");
    Ipv4Addr::new(
        127,
        100 + (byte(8) & 0x7f),
        byte(0),
        NEXT.fetch_add(1, Ordering::Relaxed),
    )
}

/// Two networks. Without root the test is recorded as skipped.
pub fn networks(test: &str) -> Option<[Network; 2]> {
    let made = || Network::new().expect("a network");
    let both = made().zip(made());
    if both.is_none() {
        skip(test, Missing::Root, "networks of its own");
    }
    both.map(|(one, other)| [one, other])
}

/// Waits for a condition about the guest.
pub async fn until(what: &str, vm: &Vm, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: {}", vm.logs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub struct Vm {
    pub dir: tempfile::TempDir,
    pub config: RunnerConfig,
    pub runner: Option<Child>,
    /// Command in front of the runner's, for example to enter a network. Empty: the runner itself.
    pub under: Vec<String>,
}

/// Bounds of a VM: cores and slots of 256 MiB.
pub struct Bounds {
    pub cpus: [u32; 3],
    pub slots: [i32; 3],
}

pub const SLOT: u64 = 256 << 20;

fn config(programs: Programs, image: BootImage, bounds: &Bounds) -> RunnerConfig {
    let [min, r#use, max] = bounds.cpus.map(MilliCpu);
    let mut spec = VmSpec::default();
    spec.guest.cpus = CpuBounds { min, r#use, max };
    let [min, r#use, max] = bounds.slots;
    spec.guest.memory_slots = MemorySlots { min, r#use, max };
    spec.guest.memory_slot_size = Quantity::from_bytes(SLOT);
    RunnerConfig {
        format: CONFIG_FORMAT,
        namespace: "test".into(),
        vm: "vm".into(),
        pod: format!("vm-{}", std::process::id()),
        spec,
        pod_ip: address(),
        programs,
        image,
        accel: AccelChoice::Auto,
        disk_cache: DiskCache::OURS,
        root_overlay: None,
        claims: None,
        // Shared by all tests, so that one probe suffices.
        knowledge_dir: std::env::temp_dir().join("bellows-test-knowledge"),
        cpu_quota_percent: 100,
        cgroup_parent: Some("bellows-test".into()),
        cgroup_in_own: false,
        tells_guest: false,
        vsock_cid: None,
        overlay: None,
        network: GuestNetwork::default(),
        walls: None,
        mounts: None,
        ssh_public_key: None,
        control_token: None,
        migration_keys: None,
        runs_init_script: false,
        receive: false,
    }
}

/// Configuration of a VM that is never started.
pub fn config_of_nothing() -> RunnerConfig {
    let programs = Programs {
        qemu_system: PathBuf::new(),
        qemu_img: PathBuf::new(),
    };
    let image = BootImage {
        kernel: PathBuf::new(),
        kernel_version: String::new(),
        initrd: None,
        root_disk: PathBuf::new(),
        root_disk_format: "raw".into(),
        root_disk_bytes: 0,
        cmdline: String::new(),
        cmdline_tcg: String::new(),
        ports: Vec::new(),
    };
    let bounds = Bounds {
        cpus: [1000; 3],
        slots: [1; 3],
    };
    config(programs, image, &bounds)
}

impl Vm {
    /// A directory with a configuration, before any start.
    pub fn new(kit: &Kit, bounds: &Bounds, change: impl FnOnce(&mut RunnerConfig)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config(kit.programs.clone(), kit.image.clone(), bounds);
        change(&mut config);
        write_json(&Paths::new(dir.path()).config(), &config).expect("a configuration");
        Self {
            dir,
            config,
            runner: None,
            under: Vec::new(),
        }
    }

    /// Runs it in this network.
    pub fn within(&mut self, network: &Network) {
        self.under = vec!["nsenter".to_owned(), format!("--net={}", network.path())];
    }

    pub fn paths(&self) -> Paths {
        Paths::new(self.dir.path())
    }

    /// Key of the guest's daemon, from the runner's directory.
    pub fn guestd_key(&self) -> String {
        let text = std::fs::read_to_string(self.paths().guestd_key());
        text.expect("the guest has a key").trim().to_owned()
    }

    pub fn daemon(&self) -> Daemon {
        Daemon {
            address: SocketAddrV4::new(self.config.pod_ip, GUESTD_FORWARD),
            key: Some(GuestdKey::try_from(self.guestd_key()).expect("a key")),
        }
    }

    /// File with the standard output of its runners.
    pub fn said(&self) -> PathBuf {
        self.dir.path().join("said")
    }

    /// Starts a runner process, which serves its control socket a moment later.
    pub async fn start(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.paths().runner_log())
            .expect("a log");
        let said = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.said())
            .expect("a file");
        let program = env!("CARGO_BIN_EXE_neonvm-runner");
        let mut words = self.under.iter().map(String::as_str).chain([program]);
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words);
        let child = command
            .args(["run", "--rundir"])
            .arg(self.dir.path())
            .stdin(Stdio::null())
            .stdout(said)
            .stderr(log)
            .spawn()
            .expect("a runner");
        self.runner = Some(child);
    }

    /// Kills the runner's process without its QEMU.
    pub async fn kill_runner(&mut self) {
        let mut runner = self.runner.take().expect("a runner runs");
        runner.kill().await.expect("it is killed");
    }

    async fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> Option<RunnerState> {
        self.say(method, path, body).await.ok()
    }

    /// Sends one request to the runner. Returns its refusal as an error.
    pub async fn say(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<RunnerState, HttpError> {
        let socket = self.paths().control();
        let limit = Duration::from_secs(60);
        let bytes = over_unix(&socket, method, path, body, limit).await?;
        serde_json::from_slice(&bytes).map_err(HttpError::Malformed)
    }

    pub async fn state(&self) -> Option<RunnerState> {
        self.ask(Method::GET, "/v1/state", Vec::new()).await
    }

    /// Polls the runner until `wanted` holds, and returns that state.
    pub async fn wait(&self, what: &str, wanted: impl Fn(&RunnerState) -> bool) -> RunnerState {
        let wait = async {
            let mut after = 0;
            loop {
                let path = format!("/v1/state?after={after}&wait_ms=2000");
                match self.ask(Method::GET, &path, Vec::new()).await {
                    Some(state) if wanted(&state) => return state,
                    Some(state) => after = state.generation,
                    // There are no states after the end.
                    None if self.paths().exit().exists() => panic!("{what}: {}", self.logs()),
                    None => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(state) => state,
            Err(_) => panic!(
                "{what}: not within {PATIENCE:?}: {:#?}\n{}",
                self.state().await,
                self.logs()
            ),
        }
    }

    pub async fn running(&self) -> RunnerState {
        self.wait("guest answers", |state| state.phase == RunnerPhase::Running)
            .await
    }

    pub async fn order(&self, milli: u32, slots: u64, revision: i64) -> RunnerState {
        let order = size_order(milli, slots, revision);
        let held = self.ask(Method::PUT, "/v1/size", order).await;
        held.unwrap_or_else(|| panic!("the order is not held: {}", self.logs()))
    }

    /// Orders a size as a sender that has seen this number of orders.
    pub async fn order_over(
        &self,
        over: u64,
        (milli, slots, revision): (u32, u64, i64),
    ) -> Result<RunnerState, HttpError> {
        let path = format!("/v1/size?over={over}");
        let order = size_order(milli, slots, revision);
        self.say(Method::PUT, &path, order).await
    }

    /// Orders a size and waits until the guest has it.
    pub async fn resize(&self, milli: u32, slots: u64, revision: i64) -> RunnerState {
        self.order(milli, slots, revision).await;
        self.wait(&format!("size {milli}m and {slots} slots"), |state| {
            state
                .resize
                .as_ref()
                .is_some_and(|resize| resize.done && resize.order.trace.revision == revision)
        })
        .await
    }

    pub async fn stop(&self, grace_ms: u64) {
        let body = format!("{{\"grace_ms\":{grace_ms}}}");
        let socket = self.paths().control();
        over_unix(
            &socket,
            Method::POST,
            "/v1/stop",
            body,
            Duration::from_secs(60),
        )
        .await
        .expect("the stop is taken");
    }

    /// Waits for the runner's end. Returns the VM's report and the exit status.
    pub async fn ended(&mut self) -> (ExitReport, i32) {
        let mut runner = self.runner.take().expect("a runner runs");
        let status = tokio::time::timeout(PATIENCE, runner.wait())
            .await
            .unwrap_or_else(|_| panic!("no end: {}", self.logs()))
            .expect("it ends");
        let bytes = std::fs::read(self.paths().exit())
            .unwrap_or_else(|_| panic!("no report: {}", self.logs()));
        let report = serde_json::from_slice(&bytes).expect("a report");
        (report, status.code().expect("an exit status"))
    }

    /// Last lines of all logs, for failure messages.
    pub fn logs(&self) -> String {
        let paths = self.paths();
        let tail = |path: &Path| {
            let text = std::fs::read(path).unwrap_or_default();
            let from = text.len().saturating_sub(3000);
            String::from_utf8_lossy(&text[from..]).into_owned()
        };
        let logs = [paths.runner_log(), paths.qemu_log(), paths.console_log()];
        logs.iter()
            .map(|path| format!("--- {}\n{}\n", path.display(), tail(path)))
            .collect()
    }
}

impl Drop for Vm {
    /// No process outlives a test, however it ends.
    fn drop(&mut self) {
        if std::thread::panicking() {
            blame(known_tcg_bug_in(self.dir.path()));
        }
        if let Some(runner) = &mut self.runner {
            let _ = runner.start_kill();
        }
        let text = std::fs::read_to_string(self.paths().pid_file()).unwrap_or_default();
        if let Ok(pid) = text.trim().parse()
            && let Some(process) = neonvm_runner::shell::process::ProcessId::of(pid)
        {
            process.kill();
        }
    }
}

/// Runs a test of a guest, again if QEMU without KVM broke the guest ([`retry_known_tcg_bug`]).
/// Without the kit it is skipped, as [`kit`] does.
pub async fn with_retries<F, R>(test: &str, run: F)
where
    F: Fn(Arc<Kit>) -> R,
    R: Future<Output = ()> + Send + 'static,
{
    if let Some(kit) = kit(test).await.map(Arc::new) {
        retry_known_tcg_bug(test, || run(Arc::clone(&kit))).await;
    }
}

/// Members of `/proc/PID/status` about a process's privileges.
pub fn privileges(pid: u32) -> [u64; 6] {
    let pid = i32::try_from(pid).expect("a process");
    let process = procfs::process::Process::new(pid).expect("it runs");
    let status = process.status().expect("its status");
    [
        status.capeff,
        status.capprm,
        status.capinh,
        status.capbnd.expect("of every kernel"),
        status.capamb.expect("of every kernel"),
        status.nonewprivs.expect("of every kernel"),
    ]
}

/// Selects CPU switching in the guest, for a `change`.
pub fn sysfs(config: &mut RunnerConfig) {
    config.spec.cpu_scaling_mode = Some(CpuScalingMode::SysfsScaling);
}

fn size_order(milli: u32, slots: u64, revision: i64) -> Vec<u8> {
    let order = SizeOrder {
        cpu: MilliCpu(milli),
        memory: Bytes(slots * SLOT),
        trace: TraceId {
            vm: "test/vm".into(),
            revision,
        },
    };
    serde_json::to_vec(&order).expect("encodes")
}
