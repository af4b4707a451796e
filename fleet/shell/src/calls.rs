//! Orders to a guest, by its runner.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use daemon_kit::http_client::HttpError;
use fleet_core::{Call, Outcome};
use fleet_store::Programs;
use hyper::{Method, StatusCode};
use protocol::fleet::TurnSpec;
use protocol::parts::PartName;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::runners::{Runner, Runners};
use crate::wanted::Wanted;

/// Routes of the guest's parts at the runner.
pub(crate) const ROUTE: &str = "/v1/guest/parts";
/// Longest push: a program is sent, hashed and tested in the guest.
const PUSH_LIMIT: Duration = Duration::from_secs(300);
/// Longest other order.
const ORDER_LIMIT: Duration = Duration::from_secs(30);

/// Programs of this host, and those that it lacks.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) programs: Programs,
    pub(crate) wanted: Wanted,
    pub(crate) read: Read,
}

/// Programs that are being sent. Many guests get the same one at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Read(Arc<Mutex<BTreeMap<String, Weak<Bytes>>>>);

impl Read {
    /// The program that another order holds, or else what `read` gives. Only one reads at a time.
    async fn of(
        &self,
        sha256: &str,
        read: impl Future<Output = Result<Vec<u8>, String>>,
    ) -> Result<Arc<Bytes>, String> {
        let mut all = self.0.lock().await;
        all.retain(|_, one| one.strong_count() > 0);
        if let Some(program) = all.get(sha256).and_then(Weak::upgrade) {
            return Ok(program);
        }
        let program = Arc::new(Bytes::from(read.await?));
        all.insert(sha256.to_owned(), Arc::downgrade(&program));
        Ok(program)
    }
}

/// Carries out an order to the part of one guest.
pub(crate) async fn carry_out(
    (runners, runner): (&Runners, &Runner),
    part: PartName,
    call: Call,
    kept: &Kept,
) -> Outcome {
    let order = async |verb: &str, body: Value| {
        let path = format!("{ROUTE}/{}/{verb}", part.as_str());
        let sent = runners.send(runner, Method::POST, &path, body.to_string(), ORDER_LIMIT);
        sent.await.map(drop)
    };
    let exchanged = match call {
        Call::Push(turn) => {
            let read = program(kept, &turn.sha256);
            let program = match kept.read.of(&turn.sha256, read).await {
                Ok(program) => program,
                Err(error) => return Outcome::Transient(error),
            };
            let path = push_path(part, &turn);
            let body = Bytes::clone(&program);
            let sent = runners.send(runner, Method::PUT, &path, body, PUSH_LIMIT);
            sent.await.map(drop)
        }
        Call::Try {
            token,
            epoch,
            seconds,
        } => {
            let body = json!({"token": token, "epoch": epoch, "seconds": seconds});
            order("try", body).await
        }
        Call::Keep { token } => order("keep", json!({"token": token})).await,
        Call::Back { token } => order("back", json!({"token": token})).await,
    };
    match exchanged {
        Ok(()) => Outcome::Done,
        Err(error) => outcome(&error),
    }
}

fn push_path(part: PartName, turn: &TurnSpec) -> String {
    format!(
        "{ROUTE}/{}?sha256={}&version={}&token={}&epoch={}",
        part.as_str(),
        turn.sha256,
        turn.version,
        turn.token,
        turn.epoch
    )
}

/// A program that the host lacks says nothing about the release.
async fn program(kept: &Kept, sha256: &str) -> Result<Vec<u8>, String> {
    let (programs, of) = (kept.programs.clone(), sha256.to_owned());
    let read = tokio::task::spawn_blocking(move || programs.read(&of)).await;
    match read {
        Ok(Ok(content)) => Ok(content),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            kept.wanted.add(sha256);
            Err(format!("program sha256:{sha256} is not kept on this host"))
        }
        Ok(Err(error)) => Err(format!("failed to read program sha256:{sha256}: {error}")),
        Err(error) => Err(format!("failed to read program sha256:{sha256}: {error}")),
    }
}

fn outcome(error: &HttpError) -> Outcome {
    let HttpError::Status(status, text) = error else {
        return Outcome::Transient(daemon_kit::chain(error));
    };
    match *status {
        StatusCode::NOT_FOUND => Outcome::NothingStaged,
        StatusCode::CONFLICT => Outcome::Busy(text.clone()),
        StatusCode::GONE => Outcome::GoneBack(text.clone()),
        StatusCode::PRECONDITION_FAILED => Outcome::Conflict,
        StatusCode::BAD_REQUEST
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::UNPROCESSABLE_ENTITY => Outcome::Refused(text.clone()),
        status => Outcome::Transient(format!("{status}: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Requirement: B36
    #[test]
    fn each_status_of_the_guests_daemon_has_its_outcome() {
        let rows = [
            (404, Outcome::NothingStaged),
            (409, Outcome::Busy("why".to_owned())),
            (410, Outcome::GoneBack("why".to_owned())),
            (412, Outcome::Conflict),
            (400, Outcome::Refused("why".to_owned())),
            (413, Outcome::Refused("why".to_owned())),
            (422, Outcome::Refused("why".to_owned())),
            (
                507,
                Outcome::Transient("507 Insufficient Storage: why".to_owned()),
            ),
            (502, Outcome::Transient("502 Bad Gateway: why".to_owned())),
        ];
        for (code, expected) in rows {
            let status = StatusCode::from_u16(code).expect("a status");
            let error = HttpError::Status(status, "why".to_owned());
            assert_eq!(outcome(&error), expected, "{code}");
        }
    }

    /// A thousand guests at a time must not bring a thousand copies of a program into memory.
    #[tokio::test]
    async fn orders_at_a_time_share_one_copy_of_their_program() {
        let reads = AtomicU32::new(0);
        let content = async || {
            reads.fetch_add(1, Ordering::Relaxed);
            Ok(vec![7; 3])
        };
        let read = Read::default();
        let first = read.of("a", content()).await.expect("a program");
        let second = read.of("a", content()).await.expect("a program");
        assert!(Arc::ptr_eq(&first, &second));
        let other = read.of("b", content()).await.expect("a program");
        assert!(!Arc::ptr_eq(&first, &other));
        drop((first, second, other));
        read.of("a", content()).await.expect("a program");
        assert_eq!(reads.load(Ordering::Relaxed), 3);
        assert_eq!(read.0.lock().await.len(), 1, "what nobody sends is dropped");
    }

    #[tokio::test]
    async fn runner_that_is_away_and_program_that_is_missing_are_transient() {
        let dir = tempfile::tempdir().expect("a directory");
        let runners = Runners::Sockets(dir.path().to_owned());
        let runner = Runner {
            namespace: "default".to_owned(),
            vm: "vm".to_owned(),
            uid: "u".to_owned(),
            pod: "pod".to_owned(),
            at: None,
            started: None,
        };
        let kept = Kept {
            programs: Programs::new(dir.path()),
            wanted: Wanted::default(),
            read: Read::default(),
        };
        let keep = Call::Keep {
            token: "t".to_owned(),
        };
        let away = carry_out((&runners, &runner), PartName::Monitor, keep, &kept).await;
        assert!(matches!(away, Outcome::Transient(_)), "{away:?}");
        let sha256 = "0".repeat(64);
        let missing = program(&kept, &sha256).await;
        assert!(missing.is_err_and(|text| text.contains("not kept")));
        assert_eq!(kept.wanted.take(), [sha256].into());
    }
}
