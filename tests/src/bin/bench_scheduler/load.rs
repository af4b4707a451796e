//! Clients that request permits as fast as possible, each over its own plain socket, without the
//! cost of a client library.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::api::name;
use super::cores::run_on;

/// Connections, each with one request at a time.
const CONNECTIONS: usize = 16;

/// Kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A size that is already permitted.
    Nothing,
    /// One unit more, and the next time one less.
    UpAndDown,
}

/// Result of a load.
pub(super) struct Load {
    /// Time of each answer, milliseconds.
    pub(super) took: Vec<f64>,
    /// Duration of the load in seconds.
    pub(super) seconds: f64,
}

impl Load {
    /// Asks for the `count` VMs in turn, on one thread of its own: more of them would only wake
    /// each other. It stays on `core`, where there is one.
    pub(super) async fn run(
        address: SocketAddr,
        (kind, count): (Kind, usize),
        lasts: Duration,
        core: Option<usize>,
    ) -> Result<Self> {
        let load = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(Self::all(address, kind, count, lasts))
        };
        tokio::task::spawn_blocking(move || run_on(core, load)).await?
    }

    async fn all(address: SocketAddr, kind: Kind, count: usize, lasts: Duration) -> Result<Self> {
        let began = Instant::now();
        let clients = (0..CONNECTIONS).map(|first| {
            let client = client(address, kind, (first, count), began + lasts);
            tokio::spawn(client)
        });
        let mut took = Vec::new();
        for client in clients.collect::<Vec<_>>() {
            took.extend(client.await??);
        }
        let seconds = began.elapsed().as_secs_f64();
        Ok(Self { took, seconds })
    }
}

async fn client(
    address: SocketAddr,
    kind: Kind,
    (first, count): (usize, usize),
    end: Instant,
) -> Result<Vec<f64>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut took = Vec::new();
    let mut buffer = vec![0; 4096];
    let mut vm = first % count;
    loop {
        let steps: &[(u32, u32)] = match kind {
            Kind::Nothing => &[(1, 1)],
            Kind::UpAndDown => &[(1, 2), (2, 1)],
        };
        for (has, wants) in steps {
            let request = request(vm, *has, *wants);
            let began = Instant::now();
            stream.write_all(request.as_bytes()).await?;
            let body = answer(&mut stream, &mut buffer).await?;
            took.push(began.elapsed().as_secs_f64() * 1e3);
            ensure!(body == permit(*wants), "VM {vm} was permitted {body}");
        }
        if Instant::now() >= end {
            return Ok(took);
        }
        vm += CONNECTIONS;
        if vm >= count {
            vm = first % count;
        }
    }
}

fn size(units: u32) -> String {
    match 250 * units {
        cpu if cpu % 1000 == 0 => format!(r#"{{"vCPUs":{},"mem":"{units}Gi"}}"#, cpu / 1000),
        cpu => format!(r#"{{"vCPUs":"{cpu}m","mem":"{units}Gi"}}"#),
    }
}

fn permit(units: u32) -> String {
    format!(r#"{{"permit":{}}}"#, size(units))
}

fn request(vm: usize, has: u32, wants: u32) -> String {
    let body = format!(
        r#"{{"protoVersion":7,"pod":{{"namespace":"default","name":"{}-pod"}},"computeUnit":{},"resources":{},"lastPermit":{},"metrics":{{"loadAvg1M":0.5}}}}"#,
        name(vm),
        size(1),
        size(wants),
        size(has)
    );
    format!(
        "POST / HTTP/1.1\r\nhost: scheduler\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Reads one answer; its body.
async fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<String> {
    let mut have = 0;
    loop {
        let read = stream.read(&mut buffer[have..]).await?;
        ensure!(read > 0, "the connection was closed");
        have += read;
        let text = std::str::from_utf8(&buffer[..have])?;
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            let value = value.trim().parse::<usize>().ok()?;
            key.eq_ignore_ascii_case("content-length").then_some(value)
        });
        if body.len() < length.context("no length")? {
            continue;
        }
        if !head.starts_with("HTTP/1.1 200") {
            bail!("answered {text}");
        }
        return Ok(body.to_owned());
    }
}
