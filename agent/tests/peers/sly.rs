//! A scheduler with a ledger that is always right and a tongue that is not: it grants whatever is
//! asked, and plays tricks with the bytes of its answers. Written by hand, since no HTTP server
//! answers one request two times.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use protocol::permit::AgentRequest;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Seen, Trace};

/// What is done with one answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Trick {
    Honest,
    /// These bytes are said instead of it, and the connection is closed.
    Says(Vec<u8>),
    /// It is said two times in one go.
    Twice,
    /// The answer before it is said once more, then it.
    Repeats,
    /// It is said only after the agent has asked again.
    Late,
}

#[derive(Clone)]
pub struct Sly {
    pub ip: IpAddr,
    pub port: u16,
    next: Arc<Mutex<VecDeque<Trick>>>,
    otherwise: Arc<Mutex<Trick>>,
    last: Arc<Mutex<Vec<u8>>>,
    asked: Arc<AtomicUsize>,
    late: Arc<AtomicUsize>,
    trace: Trace,
}

impl Sly {
    pub async fn start(trace: Trace, ip: IpAddr) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.expect("binds");
        let sly = Self {
            ip,
            port: listener.local_addr().expect("has an address").port(),
            next: Arc::default(),
            otherwise: Arc::new(Mutex::new(Trick::Honest)),
            last: Arc::default(),
            asked: Arc::default(),
            late: Arc::default(),
            trace,
        };
        let server = sly.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(server.clone().serve(stream));
            }
        });
        sly
    }

    /// These tricks for the next answers, in order.
    pub fn plays(&self, tricks: impl IntoIterator<Item = Trick>) {
        self.next
            .lock()
            .expect("no test panics here")
            .extend(tricks);
    }

    /// This trick for every answer that has none of its own.
    pub fn always(&self, trick: Trick) {
        *self.otherwise.lock().expect("no test panics here") = trick;
    }

    /// Answers that were said late.
    pub fn late(&self) -> usize {
        self.late.load(Ordering::Relaxed)
    }

    async fn serve(self, mut stream: TcpStream) {
        while let Some(body) = read_request(&mut stream).await {
            let request: AgentRequest = serde_json::from_slice(&body).expect("is a request");
            request.validate().expect("is a good request");
            let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
            let right = http(
                "200 OK",
                &json!({ "permit": request.resources }).to_string(),
            );
            self.trace.push(Seen::Permit(request));
            let before = {
                let mut last = self.last.lock().expect("no test panics here");
                std::mem::replace(&mut *last, right.clone())
            };
            let said = match self.trick() {
                Trick::Honest => right,
                Trick::Twice => [right.clone(), right].concat(),
                Trick::Repeats => [before, right].concat(),
                Trick::Says(bytes) => {
                    let _ = stream.write_all(&bytes).await;
                    return;
                }
                Trick::Late => {
                    while self.asked.load(Ordering::Relaxed) == number {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    self.late.fetch_add(1, Ordering::Relaxed);
                    right
                }
            };
            if stream.write_all(&said).await.is_err() {
                return;
            }
        }
    }

    fn trick(&self) -> Trick {
        let next = self.next.lock().expect("no test panics here").pop_front();
        next.unwrap_or_else(|| self.otherwise.lock().expect("no test panics here").clone())
    }
}

/// A whole answer.
pub fn http(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// The next request's body; `None` when no more comes.
async fn read_request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
            let length = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"))
                .and_then(|length| length.trim().parse::<usize>().ok())
                .expect("a request says its length");
            if bytes.len() >= head + 4 + length {
                return Some(bytes[head + 4..head + 4 + length].to_vec());
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
