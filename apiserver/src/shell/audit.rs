//! The audit log: a line for each call, written by a thread of its own.
//!
//! ```text
//! call ─▶ begin ─▶ … the response is sent ─▶ Drop ─▶ queue (never waits) ─▶ thread ─▶ FILE
//! ```
//! * *No call waits for the log.* While the disk refuses lines, or the queue is full, they are lost
//!   and counted. Calls go on, since people need the API to free the disk. The first line after a
//!   loss has the count, as the annotation [`LINES_LOST`].
//! * *Callers without the token cannot fill the log.* Beyond [`STRANGERS`] a minute they are
//!   counted as lost lines.
//! * *Rotation.* A file of [`MOST_BYTES`] becomes `FILE.1`, in place of the one before. A file
//!   that somebody else moves away is followed by a new one.
//! * *A torn last line* of a killed process is cut when the file is opened again.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use daemon_kit::connections::http::Addresses;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::files::{FileError, failed};
use super::http::text_header;
use crate::core::audit::{AuditedCall, LINES_LOST};
use crate::core::object::Entropy;

/// Lines of callers without the token in [`MINUTE`].
const STRANGERS: u32 = 120;
const MINUTE: Duration = Duration::from_secs(60);
/// Lines that wait for the disk.
const QUEUE: usize = 4096;
/// Most lines that go to the disk in one write.
const BATCH: usize = 256;
/// Length in bytes at which the file is rotated.
const MOST_BYTES: u64 = 256 << 20;
const MODE: u32 = 0o600;
/// Bytes at the end of a file in which a torn line is looked for: more than a line has.
const TAIL: u64 = 64 << 10;
/// Header of a response that names its line, as Kubernetes has it.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Handle to the log. Clones write to the same.
#[derive(Debug, Clone)]
pub struct AuditLog {
    lines: SyncSender<Value>,
    lost: Arc<AtomicU64>,
    strangers: Arc<Mutex<(Instant, u32)>>,
}

/// The thread that writes. It ends when the last [`AuditLog`] is gone.
#[derive(Debug)]
pub struct AuditThread(JoinHandle<()>);

impl AuditThread {
    /// Waits until the last line is written.
    pub fn join(self) {
        if self.0.join().is_err() {
            tracing::error!("the thread of the audit log failed");
        }
    }
}

impl AuditLog {
    /// Opens the file, mode 0600, and starts the thread.
    ///
    /// # Errors
    /// The file cannot be opened for appending, or there is no thread. Nothing is left running.
    pub fn open(path: &Path) -> Result<(Self, AuditThread), FileError> {
        let (lines, received) = sync_channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            path: path.to_owned(),
            open: open(path).map_err(failed("open the audit log", path))?,
            lost: Arc::clone(&lost),
            is_failing: false,
            rotate_at: MOST_BYTES,
        };
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let thread = thread.spawn(move || writer.run(&received));
        let thread = thread.map_err(failed("start a thread for", path))?;
        let log = Self {
            lines,
            lost,
            strangers: Arc::new(Mutex::new((Instant::now(), 0))),
        };
        Ok((log, AuditThread(thread)))
    }

    /// Begins the line of a call. `None` if it is counted alone.
    #[must_use]
    pub fn begin(&self, request: &Request, is_authenticated: bool) -> Option<Audited> {
        if !is_authenticated && !self.admits_stranger() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let uri = request.uri();
        let path = uri.path_and_query().map_or(uri.path(), |it| it.as_str());
        let addresses = request.extensions().get::<Addresses>();
        let call = AuditedCall {
            id: Entropy::new(rand::random()).uid(),
            received: super::now(),
            method: request.method().to_string(),
            uri: path.to_owned(),
            agent: text_header(request.headers(), &header::USER_AGENT).to_owned(),
            peer: addresses.map(|addresses| addresses.peer),
            is_authenticated,
        };
        Some(Audited {
            log: self.clone(),
            call,
            code: None,
        })
    }

    fn admits_stranger(&self) -> bool {
        // Both values are whole after any step.
        let mut seen = self.strangers.lock();
        let (since, count) = &mut **seen.as_mut().unwrap_or_else(|poisoned| poisoned.get_mut());
        if since.elapsed() >= MINUTE {
            (*since, *count) = (Instant::now(), 0);
        }
        *count = count.saturating_add(1);
        *count <= STRANGERS
    }
}

/// A call in progress. Its line is written when this goes.
#[derive(Debug)]
pub struct Audited {
    log: AuditLog,
    call: AuditedCall,
    code: Option<u16>,
}

impl Audited {
    /// Has the line written once the last byte of the response is sent, or the client is gone.
    #[must_use]
    pub fn until_sent(mut self, mut response: Response) -> Response {
        self.code = Some(response.status().as_u16());
        if let Ok(id) = HeaderValue::from_str(&self.call.id) {
            response.headers_mut().insert(AUDIT_ID, id);
        }
        response.map(|body| {
            Body::new(body.map_err(move |error| {
                let _held = &self;
                error
            }))
        })
    }
}

impl Drop for Audited {
    fn drop(&mut self) {
        let event = self.call.event(self.code, super::now());
        if self.log.lines.try_send(event).is_err() {
            self.log.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An open file with its number and length.
#[derive(Debug)]
struct Opened {
    file: File,
    inode: u64,
    length: u64,
}

fn open(path: &Path) -> io::Result<Opened> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(MODE)
        .open(path)?;
    let found = file.metadata()?;
    let mut length = found.len();
    if found.is_file() {
        file.set_permissions(Permissions::from_mode(MODE))?;
        length = whole_lines(&file, length)?;
        if length < found.len() {
            tracing::warn!(path = %path.display(), bytes = found.len() - length, "torn last line of the audit log was cut");
            file.set_len(length)?;
        }
    }
    Ok(Opened {
        file,
        inode: found.ino(),
        length,
    })
}

/// Length up to the end of the last whole line.
fn whole_lines(mut file: &File, length: u64) -> io::Result<u64> {
    let begin = length.saturating_sub(TAIL);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(begin))?;
    file.read_to_end(&mut tail)?;
    let end = tail.iter().rposition(|byte| *byte == b'\n');
    let torn = tail.len() - end.map_or(0, |end| end + 1);
    Ok(length.saturating_sub(u64::try_from(torn).unwrap_or(0)))
}

struct Writer {
    path: PathBuf,
    open: Opened,
    lost: Arc<AtomicU64>,
    is_failing: bool,
    /// Length at which it is rotated.
    rotate_at: u64,
}

impl Writer {
    fn run(mut self, lines: &Receiver<Value>) {
        while let Ok(first) = lines.recv() {
            let mut events = vec![first];
            events.extend(lines.try_iter().take(BATCH - 1));
            self.write(events);
        }
        if let Err(error) = self.open.file.sync_all() {
            tracing::warn!(%error, "failed to sync the audit log");
        }
    }

    fn write(&mut self, mut events: Vec<Value>) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            events[0]["annotations"] = json!({LINES_LOST: lost.to_string()});
        }
        let lines = events.iter().map(|event| format!("{event}\n"));
        let written = self.put(&lines.collect::<String>());
        let path = self.path.display();
        match &written {
            Err(error) if !self.is_failing => {
                tracing::error!(%path, %error, "the audit log loses lines");
            }
            Ok(()) if self.is_failing => {
                tracing::warn!(%path, lost, "the audit log has lost lines")
            }
            _ => {}
        }
        self.is_failing = written.is_err();
        if written.is_err() {
            let count = u64::try_from(events.len()).unwrap_or(0);
            self.lost.fetch_add(lost + count, Ordering::Relaxed);
        }
    }

    fn put(&mut self, text: &str) -> io::Result<()> {
        let more = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if self.open.length.saturating_add(more) > self.rotate_at {
            self.rotate();
        }
        // Somebody else may have moved or removed it.
        let is_same = fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.open.inode);
        if !is_same {
            self.open = open(&self.path)?;
        }
        let written = self.open.file.write_all(text.as_bytes());
        match written {
            Ok(()) => self.open.length += more,
            // Half a line must not become the begin of the next one.
            Err(_) => self.open.file.set_len(self.open.length)?,
        }
        written
    }

    /// A file that cannot be moved is longer: no line is lost for that.
    fn rotate(&mut self) {
        let mut older = self.path.clone().into_os_string();
        older.push(".1");
        let rotated = self.open.file.sync_all();
        let rotated = rotated.and_then(|()| fs::rename(&self.path, older));
        self.rotate_at = match rotated {
            Ok(()) => MOST_BYTES,
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "failed to rotate the audit log");
                self.open.length + MOST_BYTES
            }
        };
    }
}

#[cfg(test)]
mod tests;
