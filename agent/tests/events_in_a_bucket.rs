//! Events in a real S3-compatible server and in an Azure-style one, from the agent's binary, over
//! `kill -9` and an orderly end.

mod peers;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use peers::{World, address};
use protocol::time::WallTime;
use serde_json::{Value, json};
use test_records::{Missing, installed, skip};
use tokio::process::{Child, Command};

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);
/// Ports that are tried for a server.
const PORTS_TRIED: u32 = 5;
const ACCESS: &str = "test-access";
const SECRET: &str = "test-secret-key";
const BUCKET: &str = "bills";
const ACCOUNT: &str = "bellows";
const ACCOUNT_KEY: &str = "dGVzdC1zZWNyZXQta2V5";

/// The S3 server's program: `$BELLOWS_S3_SERVER`, or where `cargo xtask setup` puts it.
fn server_program() -> Option<PathBuf> {
    let given = std::env::var_os("BELLOWS_S3_SERVER").map(PathBuf::from);
    given
        .or_else(|| installed("versitygw"))
        .filter(|path| path.is_file())
}

/// An address nobody listens at.
async fn free_address() -> SocketAddr {
    let free = tokio::net::TcpListener::bind((address(), 0)).await;
    free.expect("binds").local_addr().expect("has an address")
}

/// Starts a server at an address of its own. A process that listens at the same port of all
/// addresses keeps the server from it: the server ends, and gets another port.
async fn serve(what: &str, command: impl Fn(SocketAddr) -> Command) -> (SocketAddr, Child) {
    for _ in 0..PORTS_TRIED {
        let listen = free_address().await;
        let mut command = command(listen);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.kill_on_drop(true).spawn().expect("starts");
        let mut is_ended = false;
        until(what, async || {
            is_ended = process.try_wait().expect("is a child").is_some();
            is_ended || is_bound(listen)
        })
        .await;
        if !is_ended {
            return (listen, process);
        }
    }
    panic!("no port in {PORTS_TRIED} is free until {what}");
}

/// Whether a socket listens at exactly this address.
fn is_bound(listen: SocketAddr) -> bool {
    let IpAddr::V4(ip) = listen.ip() else {
        return false;
    };
    let bytes = u32::from_ne_bytes(ip.octets());
    let row = format!(" {bytes:08X}:{:04X} 00000000:0000 0A ", listen.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("is there");
    table.contains(&row)
}

/// A folder of buckets behind an S3 server.
struct Server {
    url: String,
    root: tempfile::TempDir,
    _process: Child,
}

impl Server {
    async fn start(program: &Path) -> Self {
        let root = tempfile::tempdir().expect("makes a folder");
        let command = |listen: SocketAddr| {
            let mut command = Command::new(program);
            command
                .args(["--access", ACCESS, "--secret", SECRET])
                .args(["--port", &listen.to_string(), "posix"])
                .arg(root.path());
            command
        };
        let (listen, process) = serve("the S3 server listens", command).await;
        Self {
            url: format!("http://{listen}"),
            root,
            _process: process,
        }
    }

    /// Objects under a folder of the bucket, in the order of their names, unpacked.
    fn objects(&self, folder: &str) -> Vec<(String, Vec<Value>)> {
        let top = self.root.path().join(BUCKET).join(folder);
        let (mut folders, mut objects) = (vec![top.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(events) = events_in(&path) {
                    let name = path.strip_prefix(&top).expect("below it");
                    objects.push((name.display().to_string(), events));
                }
            }
        }
        objects.sort_by(|a, b| a.0.cmp(&b.0));
        objects
    }
}

fn events_in(path: &Path) -> Option<Vec<Value>> {
    events_of(std::fs::File::open(path).ok()?)
}

fn events_of(packed: impl std::io::Read) -> Option<Vec<Value>> {
    let mut text = String::new();
    let mut decoder = flate2::read::GzDecoder::new(packed);
    decoder.read_to_string(&mut text).ok()?;
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("is JSON"));
    Some(lines.collect())
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !is_so().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "waited in vain until {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The binary, with its files in `folder`.
fn agent(folder: &Path, world: &World) -> Child {
    peers::program::command(folder, world, address())
        .env("AWS_ACCESS_KEY_ID", ACCESS)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        .env("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
        .spawn()
        .expect("starts")
}

fn configure(world: &mut World, server: &Server) {
    let client = |prefix: &str| {
        json!({"bucket": BUCKET, "region": "us-east-1", "endpoint": server.url, "prefixInBucket": prefix,
            "pushEverySeconds": 1, "pushRequestTimeoutSeconds": 10, "maxBatchSize": 4})
    };
    world.config["scalingEvents"]["clients"] = json!({"s3": client("scaling")});
    bill(world, json!({"s3": client("use/")}));
}

fn bill(world: &mut World, clients: Value) {
    world.config["billing"]["collectEverySeconds"] = json!(1);
    world.config["billing"]["accumulateEverySeconds"] = json!(1);
    world.config["billing"]["clients"] = clients;
    let mut vm = peers::api::vm("vm", &world.guest.ip.to_string());
    vm["metadata"]["annotations"] = json!({"autoscaling.neon.tech/billing-endpoint-id": "ep-1"});
    vm["status"]["cpus"] = json!("250m");
    world.api.put_vm(vm);
}

fn micros(event: &Value, key: &str) -> i64 {
    let text = event[key].as_str().expect("is text");
    WallTime::parse(text).expect("is a time").0
}

/// No key twice, periods without holes, and as many seconds as went by.
fn check_bill(objects: &[(String, Vec<Value>)]) {
    let events: Vec<&Value> = objects.iter().flat_map(|(_, events)| events).collect();
    let keys: BTreeSet<&str> = events
        .iter()
        .map(|event| event["idempotency_key"].as_str().expect("is text"))
        .collect();
    assert_eq!(keys.len(), events.len(), "an event twice: {objects:?}");
    let mut active: Vec<&&Value> = events
        .iter()
        .filter(|event| event["metric"] == "active_time_seconds")
        .collect();
    active.sort_by_key(|event| micros(event, "start_time"));
    for pair in active.windows(2) {
        assert_eq!(
            pair[0]["stop_time"], pair[1]["start_time"],
            "a hole: {pair:?}"
        );
    }
    let (first, last) = (active[0], active[active.len() - 1]);
    let went_by = micros(last, "stop_time") - micros(first, "start_time");
    let billed: i64 = active
        .iter()
        .filter_map(|event| event["value"].as_i64())
        .sum();
    // Half a second of rounding, and up to one before the first look.
    let off = went_by - billed * 1_000_000;
    assert!(
        (-600_000..2_500_000).contains(&off),
        "{billed} s of {went_by} µs: {active:?}"
    );
}

/// Requirement: N40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_has_every_event_once_after_kill_9_and_absence() {
    let Some(program) = server_program() else {
        let test = "bucket_has_every_event_once_after_kill_9_and_absence";
        return skip(test, Missing::Go, "no versitygw: `cargo xtask setup`");
    };
    let server = Server::start(&program).await;
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut world = World::new().await;
    configure(&mut world, &server);
    let mut first = agent(folder.path(), &world);
    // There is no bucket yet: events wait, on disk.
    let cursor = folder.path().join("events/billing/s3.cursor");
    until("a batch is tried", async || cursor.is_file()).await;
    std::fs::create_dir(server.root.path().join(BUCKET)).expect("makes a bucket");
    until("three batches are there", async || {
        server.objects("use").len() >= 3
    })
    .await;
    first.kill().await.expect("is killed");
    let before = server.objects("use").len();
    let mut second = agent(folder.path(), &world);
    until("more are there", async || {
        server.objects("use").len() > before + 1
    })
    .await;
    until("sizes are told", async || {
        !server.objects("scaling").is_empty()
    })
    .await;
    let pid = second.id().expect("runs").to_string();
    let asked = Command::new("kill").args(["-TERM", &pid]).status().await;
    assert!(asked.expect("runs").success());
    let ended = tokio::time::timeout(LIMIT, second.wait()).await;
    assert_eq!(ended.expect("in time").expect("ends").code(), Some(0));
    let bills = server.objects("use");
    check_bill(&bills);
    assert!(
        bills[0].0.starts_with("year=20") && bills[0].0.ends_with(".ndjson.gz"),
        "{:?}",
        bills[0]
    );
    assert!(
        bills
            .iter()
            .all(|(_, events)| (1..=4).contains(&events.len()))
    );
    let told = &server.objects("scaling")[0].1[0];
    assert_eq!(
        (&told["kind"], &told["region"]),
        (&json!("hypothetical"), &json!("one-machine"))
    );
}

/// An Azure-style blob server, and its containers.
struct BlobServer {
    url: String,
    _root: tempfile::TempDir,
    _process: Child,
}

/// Makes a container that anybody may read: Node, which the server runs on, signs the request as
/// the account.
const MAKE_CONTAINER: &str = r"
const [url, account, key, container] = process.argv.slice(1);
const date = new Date().toUTCString(), version = '2021-12-02';
const named = ['x-ms-blob-public-access:container', 'x-ms-date:' + date, 'x-ms-version:' + version];
const path = `/${account}/${account}/${container}\nrestype:container`;
const text = ['PUT', ...Array(11).fill(''), ...named, path].join('\n');
const signed = require('crypto').createHmac('sha256', Buffer.from(key, 'base64')).update(text, 'utf8').digest('base64');
const headers = {'x-ms-blob-public-access': 'container', 'x-ms-date': date, 'x-ms-version': version,
  'content-length': 0, authorization: `SharedKey ${account}:${signed}`};
const to = `${url}/${container}?restype=container`;
require('http').request(to, {method: 'PUT', headers}, got => process.exit(got.statusCode == 201 ? 0 : 1)).end();
";

impl BlobServer {
    async fn start(program: &Path) -> Self {
        let root = tempfile::tempdir().expect("makes a folder");
        let command = |listen: SocketAddr| {
            let mut command = Command::new("node");
            command
                .arg(program)
                .args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"])
                .args(["--blobHost", &listen.ip().to_string()])
                .args(["--blobPort", &listen.port().to_string(), "--location"])
                .arg(root.path())
                .env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{ACCOUNT_KEY}"));
            command
        };
        let (listen, process) = serve("the blob server listens", command).await;
        Self {
            url: format!("http://{listen}/{ACCOUNT}"),
            _root: root,
            _process: process,
        }
    }

    async fn make_container(&self) {
        let made = Command::new("node")
            .args([
                "-e",
                MAKE_CONTAINER,
                &self.url,
                ACCOUNT,
                ACCOUNT_KEY,
                BUCKET,
            ])
            .status()
            .await;
        assert!(made.expect("runs").success(), "no container was made");
    }

    /// Every blob, in the order of their names, unpacked.
    async fn blobs(&self) -> Vec<(String, Vec<Value>)> {
        let client = reqwest::Client::new();
        let get = async |path: &str| {
            let got = client
                .get(format!("{}/{BUCKET}{path}", self.url))
                .send()
                .await;
            let got = got.expect("answers").error_for_status().expect("is there");
            got.bytes().await.expect("comes whole")
        };
        let list = get("?restype=container&comp=list").await;
        let list = String::from_utf8(list.to_vec()).expect("is text");
        let names = list.split("<Name>").skip(1);
        let mut blobs = Vec::new();
        for name in names.filter_map(|rest| rest.split("</Name>").next()) {
            let packed = get(&format!("/{name}")).await;
            let events = events_of(&packed[..]).expect("is packed");
            blobs.push((name.to_owned(), events));
        }
        blobs.sort_by(|a, b| a.0.cmp(&b.0));
        blobs
    }
}

/// Requirement: N40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blob_container_has_every_event_once_after_kill_9_and_absence() {
    let program = installed("azurite/node_modules/azurite/dist/src/blob/main.js");
    let Some(program) = program.filter(|path| path.is_file()) else {
        let test = "blob_container_has_every_event_once_after_kill_9_and_absence";
        return skip(test, Missing::Node, "no azurite: `cargo xtask setup`");
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = BlobServer::start(&program).await;
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut world = World::new().await;
    let client = json!({"endpoint": server.url, "container": BUCKET, "prefixInContainer": "use",
        "pushEverySeconds": 1, "pushRequestTimeoutSeconds": 10, "maxBatchSize": 4});
    bill(&mut world, json!({"azureBlob": client}));
    let mut first = agent(folder.path(), &world);
    let cursor = folder.path().join("events/billing/azureblob.cursor");
    until("a batch is tried", async || cursor.is_file()).await;
    server.make_container().await;
    until("three batches are there", async || {
        server.blobs().await.len() >= 3
    })
    .await;
    first.kill().await.expect("is killed");
    let before = server.blobs().await.len();
    let mut second = agent(folder.path(), &world);
    until("more are there", async || {
        server.blobs().await.len() > before + 1
    })
    .await;
    let pid = second.id().expect("runs").to_string();
    let asked = Command::new("kill").args(["-TERM", &pid]).status().await;
    assert!(asked.expect("runs").success());
    let ended = tokio::time::timeout(LIMIT, second.wait()).await;
    assert_eq!(ended.expect("in time").expect("ends").code(), Some(0));
    let bills = server.blobs().await;
    check_bill(&bills);
    assert!(bills[0].0.starts_with("use/year=20"), "{:?}", bills[0]);
}
