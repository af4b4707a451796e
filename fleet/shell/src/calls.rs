//! Orders to a guest, by the control socket of its runner.

use std::io;
use std::path::Path;
use std::time::Duration;

use daemon_kit::http_client::{HttpError, over_unix};
use fleet_core::{Call, Outcome};
use fleet_store::Programs;
use hyper::{Method, StatusCode};
use protocol::fleet::TurnSpec;
use protocol::parts::PartName;
use serde_json::json;

/// Routes of the guest's parts at the runner.
pub(crate) const ROUTE: &str = "/v1/guest/parts";
/// Longest push: a program is sent, hashed and tested in the guest.
const PUSH_LIMIT: Duration = Duration::from_secs(300);
/// Longest other order.
const ORDER_LIMIT: Duration = Duration::from_secs(30);

/// Carries out an order to the part of one guest.
pub(crate) async fn carry_out(
    socket: &Path,
    part: PartName,
    call: Call,
    programs: &Programs,
) -> Outcome {
    let exchanged = match call {
        Call::Push(turn) => {
            let body = match program(programs, &turn.sha256).await {
                Ok(body) => body,
                Err(error) => return Outcome::Transient(error),
            };
            let path = push_path(part, &turn);
            let sent = over_unix(socket, Method::PUT, &path, body, PUSH_LIMIT).await;
            sent.map(drop)
        }
        Call::Try {
            token,
            epoch,
            seconds,
        } => {
            let body = json!({"token": token, "epoch": epoch, "seconds": seconds});
            order(socket, part, "try", body.to_string()).await
        }
        Call::Keep { token } => {
            order(socket, part, "keep", json!({"token": token}).to_string()).await
        }
        Call::Back { token } => {
            order(socket, part, "back", json!({"token": token}).to_string()).await
        }
    };
    match exchanged {
        Ok(()) => Outcome::Done,
        Err(error) => outcome(&error),
    }
}

async fn order(socket: &Path, part: PartName, verb: &str, body: String) -> Result<(), HttpError> {
    let path = format!("{ROUTE}/{}/{verb}", part.as_str());
    let sent = over_unix(socket, Method::POST, &path, body, ORDER_LIMIT).await;
    sent.map(drop)
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
async fn program(programs: &Programs, sha256: &str) -> Result<Vec<u8>, String> {
    let (programs, of) = (programs.clone(), sha256.to_owned());
    let read = tokio::task::spawn_blocking(move || programs.read(&of)).await;
    match read {
        Ok(Ok(content)) => Ok(content),
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
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
    use protocol::runner::control_socket;

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

    #[tokio::test]
    async fn runner_that_is_away_and_program_that_is_missing_are_transient() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = control_socket(dir.path(), "default", "pod");
        let programs = Programs::new(dir.path());
        let keep = Call::Keep {
            token: "t".to_owned(),
        };
        let away = carry_out(&socket, PartName::Monitor, keep, &programs).await;
        assert!(matches!(away, Outcome::Transient(_)), "{away:?}");
        let missing = program(&programs, &"0".repeat(64)).await;
        assert!(missing.is_err_and(|text| text.contains("not kept")));
    }
}
