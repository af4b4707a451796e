//! The notice that people read at a login, while this guest is about to move.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use protocol::notice::{MOST_BYTES, MoveNotice};
use tracing::{info, warn};

use super::response::{HttpResponse, answer};

/// Every user of the guest may read it.
const MODE: u32 = 0o644;

/// The file of the notice.
#[derive(Debug, Clone)]
pub struct Notice {
    path: PathBuf,
    /// Number of the newest order, so that an older one's time takes nothing away.
    newest: Arc<AtomicU64>,
}

impl Notice {
    /// The file at a path. A notice of an earlier process is removed: nothing else would end it.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        let notice = Self {
            path,
            newest: Arc::default(),
        };
        notice.remove_or_warn();
        notice
    }

    pub(super) async fn route(&self, request: Request<Incoming>) -> HttpResponse {
        let done = match *request.method() {
            Method::PUT => self.show(request).await,
            Method::DELETE => self.take_away().map_err(Failure::File),
            _ => {
                let text = "a notice is shown by PUT, and taken away by DELETE\n";
                return answer(StatusCode::METHOD_NOT_ALLOWED, text);
            }
        };
        match done {
            Ok(()) => answer(StatusCode::OK, ""),
            Err(Failure::Refused(text)) => {
                answer(StatusCode::UNPROCESSABLE_ENTITY, format!("{text}\n"))
            }
            Err(Failure::File(error)) => {
                warn!(%error, path = %self.path.display(), "failed to change the notice");
                answer(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"))
            }
        }
    }

    async fn show(&self, request: Request<Incoming>) -> Result<(), Failure> {
        let body = Limited::new(request.into_body(), MOST_BYTES);
        let body = body.collect().await.map_err(|_| {
            Failure::Refused(format!("the body must have at most {MOST_BYTES} bytes"))
        })?;
        let notice = MoveNotice::parse(&body.to_bytes()).map_err(Failure::Refused)?;
        self.begin(&notice).map_err(Failure::File)
    }

    fn begin(&self, notice: &MoveNotice) -> io::Result<()> {
        self.write(notice)?;
        info!(version = notice.version, "a notice is shown at logins");
        let number = self.next();
        let (own, seconds) = (self.clone(), notice.valid_seconds);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds.into())).await;
            if own.newest.load(Ordering::Acquire) == number {
                own.remove_or_warn();
            }
        });
        Ok(())
    }

    /// Readers see the whole text or none.
    fn write(&self, notice: &MoveNotice) -> io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let draft = self.path.with_extension("new");
        fs::write(&draft, notice.text())?;
        fs::set_permissions(&draft, fs::Permissions::from_mode(MODE))?;
        fs::rename(&draft, &self.path)
    }

    fn take_away(&self) -> io::Result<()> {
        self.next();
        self.remove()
    }

    fn next(&self) -> u64 {
        self.newest.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn remove_or_warn(&self) {
        if let Err(error) = self.remove() {
            warn!(%error, path = %self.path.display(), "failed to remove a notice");
        }
    }
}

enum Failure {
    Refused(String),
    File(io::Error),
}

#[cfg(test)]
mod tests {
    use protocol::time::WallTime;

    use super::*;

    fn notice_for(seconds: u32) -> MoveNotice {
        MoveNotice {
            version: "1.2.3".to_owned(),
            since: WallTime(1_700_000_000_000_000),
            valid_seconds: seconds,
        }
    }

    /// Requirement: R44
    #[tokio::test(start_paused = true)]
    async fn notice_is_there_until_it_is_taken_away_or_its_time_is_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bellows/notice");
        let notice = Notice::new(path.clone());
        notice.take_away().expect("nothing to do");
        notice.begin(&notice_for(60)).expect("shown");
        let text = fs::read_to_string(&path).expect("a notice");
        assert!(text.contains("version 1.2.3"), "{text}");
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, MODE);

        // The time of the first one ends nothing once it was renewed.
        tokio::time::sleep(Duration::from_secs(40)).await;
        notice.begin(&notice_for(60)).expect("renewed");
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert!(path.exists());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!path.exists());

        notice.begin(&notice_for(60)).expect("shown");
        notice.take_away().expect("taken away");
        assert!(!path.exists());
        notice.begin(&notice_for(60)).expect("shown");
        let _next_process = Notice::new(path.clone());
        assert!(!path.exists(), "a daemon that begins ends an old notice");
    }
}
