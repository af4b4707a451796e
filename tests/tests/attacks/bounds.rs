//! Attacker: a client that can connect to a port. It holds connections and sends nothing, or a
//! partial request.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::figures::percentile;
use bellows_tests::kubeconfig::client_of;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{Site, UpOptions};
use futures::StreamExt as _;
use procfs::net::TcpState;
use procfs::process::{FDTarget, Process};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Open files of the attacked process.
const DESCRIPTORS: u64 = 1024;
/// Connections of the attacker, over all ports.
const CONNECTIONS: usize = 4_000;
/// Connections that the attacker opens while others work, each second.
const NEW_EACH_SECOND: u64 = 100;
/// First bytes of a connection: none, half a request, half a TLS handshake.
const OPENINGS: [&[u8]; 3] = [
    b"",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
    b"\x16\x03\x01\x02\x00\x01\x00",
];
/// Requests measured with and without the attack.
const REQUESTS: usize = 100;
/// Longest time for a response.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest request under attack. On a slow machine, the same multiple of the time without an
/// attack.
const ALLOWED_MS: f64 = 1_000.0;
const ALLOWED_TIMES: f64 = 10.0;

/// Requirement: W9, S6. Idle and half-open connections over all ports stop neither the API nor the
/// pages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_over_all_ports_do_not_exclude_clients() -> Result<()> {
    raise_file_limit()?;
    let site = Site::fresh_with(UpOptions {
        open_files: Some(DESCRIPTORS),
        ..UpOptions::default()
    })
    .await?;
    let ports = listening(site.pid().context("bellows up runs")?)?;
    ensure!(ports.len() >= 5, "too few ports to attack: {ports:?}");
    let quiet = request_times(&site, &mut Vec::new()).await;

    let mut held = Vec::new();
    open(&ports, CONNECTIONS, &mut held).await;
    let mut attack = JoinSet::new();
    let targets = Arc::new(ports.clone());
    attack.spawn(async move {
        let mut held = Vec::new();
        loop {
            open(&targets, 1, &mut held).await;
            tokio::time::sleep(Duration::from_millis(1000 / NEW_EACH_SECOND)).await;
        }
    });
    let mut failures = Vec::new();
    let attacked = request_times(&site, &mut failures).await;

    let mut report = Report::new("anybody who holds connections");
    let how = format!("{CONNECTIONS} idle connections, {DESCRIPTORS} descriptors");
    let (before, after) = (percentile(&quiet, 99), percentile(&attacked, 99));
    let times = format!("p99 {before:.0} ms without, {after:.0} ms with them");
    let allowed = ALLOWED_MS.max(before * ALLOWED_TIMES);
    let outcome = match failures.first() {
        Some(first) => Outcome::Succeeded(format!("{} failed: {first}", failures.len())),
        None if after > allowed => Outcome::Succeeded(times),
        None => Outcome::Refused(times),
    };
    report.record("W9", "requests to the API", how.clone(), outcome);
    for port in &ports {
        let outcome = match page(*port).await {
            Ok(said) => Outcome::Refused(said),
            Err(error) => Outcome::Succeeded(format!("no answer: {error:#}")),
        };
        report.record("W9", format!("port {port}"), how.clone(), outcome);
    }
    let outcome = match closed_connections(&site).await {
        Ok(count) if count > 0.0 => Outcome::Refused(format!("{count} closed and counted")),
        Ok(_) => Outcome::Succeeded("no closed connection was counted".into()),
        Err(error) => Outcome::Succeeded(format!("{error:#}")),
    };
    report.record("W9", "http_connections_closed_total", how, outcome);
    attack.abort_all();
    drop(held);
    report.finish();
    Ok(())
}

/// The TCP addresses that a process listens on.
fn listening(pid: u32) -> Result<Vec<SocketAddr>> {
    let process = Process::new(i32::try_from(pid)?)?;
    let sockets: BTreeSet<u64> = process
        .fd()?
        .filter_map(|fd| match fd.ok()?.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect();
    let all = procfs::net::tcp()?.into_iter();
    let ours = all.filter(|it| it.state == TcpState::Listen && sockets.contains(&it.inode));
    Ok(ours.map(|it| it.local_address).collect())
}

/// Opens connections to all ports in turn, and holds those that open in time.
async fn open(ports: &[SocketAddr], count: usize, held: &mut Vec<TcpStream>) {
    let dials = (0..count).map(|n| {
        let n = n + held.len();
        let (port, opening) = (ports[n % ports.len()], OPENINGS[(n / ports.len()) % 3]);
        async move {
            let mut stream = timeout(Duration::from_secs(1), TcpStream::connect(port)).await;
            if let Ok(Ok(stream)) = &mut stream {
                // The server may have closed it by now: that is its right.
                let _ = stream.write_all(opening).await;
            }
            stream
        }
    });
    let opened: Vec<_> = futures::stream::iter(dials)
        .buffer_unordered(64)
        .collect()
        .await;
    held.extend(opened.into_iter().flatten().flatten());
}

/// Milliseconds of requests as `kubectl` makes them, each on a connection of its own.
async fn request_times(site: &Site, failures: &mut Vec<String>) -> Vec<f64> {
    let kubeconfig = site.state_dir().join("kubeconfig");
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let began = Instant::now();
        let request = async {
            client_of(&kubeconfig)
                .await?
                .apiserver_version()
                .await
                .map_err(anyhow::Error::from)
        };
        match timeout(PATIENCE, request).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => failures.push(format!("{error:#}")),
            Err(_) => failures.push(format!("no answer in {PATIENCE:?}")),
        }
        times.push(began.elapsed().as_secs_f64() * 1e3);
        if failures.len() > 3 {
            break;
        }
    }
    times
}

/// The first line that a port answers to a newcomer, whatever it speaks.
async fn page(port: SocketAddr) -> Result<String> {
    let plain = reqwest::Client::builder().timeout(PATIENCE);
    let plain = plain.tls_danger_accept_invalid_certs(true).build()?;
    wait_for("an answer", PATIENCE * 2, || async {
        let mut seen = String::new();
        for scheme in ["http", "https"] {
            match plain.get(format!("{scheme}://{port}/healthz")).send().await {
                Ok(answer) => return Ok(format!("{scheme} {}", answer.status())),
                Err(error) => seen = format!("{error:?}"),
            }
        }
        Err(seen)
    })
    .await
}

/// Connections that bounds have closed, of all servers on the page of `bellows up`.
async fn closed_connections(site: &Site) -> Result<f64> {
    let parts = site.ready["parts"].as_array().context("no parts")?;
    let metrics = parts.iter().find(|part| part["name"] == "metrics");
    let url = metrics.and_then(|part| part["address"].as_str());
    let token = std::fs::read_to_string(site.state_dir().join("metrics.token"))?;
    let page = reqwest::Client::new()
        .get(url.context("no metrics page")?)
        .bearer_auth(token.trim())
        .send()
        .await?;
    let text = page.error_for_status()?.text().await?;
    let lines = text.lines();
    let values = lines.filter_map(|line| {
        let (_, value) = line
            .strip_prefix("http_connections_closed_total")?
            .rsplit_once(' ')?;
        value.parse::<f64>().ok()
    });
    Ok(values.sum())
}

fn raise_file_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("raise the limit of open files")?;
    let enough = u64::try_from(CONNECTIONS)? * 2;
    ensure!(
        limit.current.is_none_or(|files| files >= enough),
        "this test needs a hard limit of {enough} open files: raise it (ulimit -Hn)"
    );
    Ok(())
}
