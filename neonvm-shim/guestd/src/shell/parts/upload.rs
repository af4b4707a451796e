//! Receives a program: streams it into the idle slot while hashing, then checks it.

use std::fs::File;
use std::io::{self, Write as _};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use neonvm_parts::core::elf;
use neonvm_parts::core::orders;
use neonvm_parts::core::record::Verb;
use neonvm_parts::core::refusal::Refusal;
use neonvm_parts::core::request::Bring;
use neonvm_parts::core::trial::Slot;
use protocol::parts::{PROGRAM_BYTES, PartName, PartState};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::process::hex;
use super::{Failure, Parts, service};
use crate::shell::render::command;
use crate::shell::render::destination::Rights;

/// Longest pause between two pieces of a body.
const PIECE_LIMIT: Duration = Duration::from_secs(30);

impl Parts {
    /// Brings a program.
    pub(super) async fn bring(
        &self,
        part: PartName,
        request: &Bring,
        mut body: Incoming,
    ) -> Result<PartState, Failure> {
        let _turn = self.turn.lock().await;
        // The sender writes its body before it reads a response.
        let slot = match self.begin(part, request, &body) {
            Ok(Ok(slot)) => slot,
            Ok(Err(earlier)) => {
                drain(&mut body).await;
                return Ok(earlier);
            }
            Err(failure) => {
                drain(&mut body).await;
                return Err(failure);
            }
        };
        let received = self.receive(part, slot, request, &mut body).await;
        if received.is_err() {
            drain(&mut body).await;
            self.places(part).drop_draft(slot)?;
        }
        received?;
        let record = self.places(part).record()?;
        let plan = orders::brought(&record, slot, request);
        self.carry_out(part, Verb::Bring, &request.token, plan)
            .await
    }

    /// The slot for the program, or the response of an earlier request.
    fn begin(
        &self,
        part: PartName,
        request: &Bring,
        body: &Incoming,
    ) -> Result<Result<Slot, PartState>, Failure> {
        let places = self.places(part);
        let (record, sight) = (places.record()?, places.sight()?);
        let slot = match orders::may_bring(&record, &sight, request)? {
            Ok(slot) => slot,
            Err(earlier) => return Ok(Err(*earlier)),
        };
        let bytes = body.size_hint().exact().unwrap_or(PROGRAM_BYTES);
        if bytes > PROGRAM_BYTES {
            return Err(Refusal::TooLong.into());
        }
        places.prepare(slot)?;
        let system = rustix::fs::statvfs(places.dir()).map_err(io::Error::from)?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        if free < bytes.saturating_mul(2) {
            return Err(Refusal::NoRoom { free, bytes }.into());
        }
        Ok(Ok(slot))
    }

    async fn receive(
        &self,
        part: PartName,
        slot: Slot,
        request: &Bring,
        body: &mut Incoming,
    ) -> Result<(), Failure> {
        let places = self.places(part);
        let mut draft = Draft {
            file: places.open_draft(slot)?,
            hasher: Sha256::new(),
            head: Vec::new(),
            bytes: 0,
        };
        while let Some(piece) = next(body).await? {
            draft.write(&piece)?;
        }
        draft.file.sync_all()?;
        // The file is closed: a program that is open for writing cannot be executed.
        let (found, head) = (hex(&draft.hasher.finalize()), draft.head);
        drop(draft.file);
        if found != request.sha256 {
            let text = format!("the body's SHA-256 is {found}, not {}", request.sha256);
            return Err(Refusal::Unfit(text).into());
        }
        elf::check(&head, elf::MACHINE).map_err(|reason| Refusal::Unfit(reason.to_owned()))?;
        self.test(part, slot).await
    }

    /// Runs the draft as its service would, with `--self-test`.
    async fn test(&self, part: PartName, slot: Slot) -> Result<(), Failure> {
        let text = |path: std::path::PathBuf| path.display().to_string();
        let words = [
            text(self.settings.scripts.join("service")),
            service(part).to_owned(),
            "--self-test".to_owned(),
            text(self.places(part).draft(slot)),
        ];
        let rights = Rights {
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            mode: 0o755,
        };
        let failed = |reason| Refusal::Unfit(format!("the program's self-test failed: {reason}"));
        command::run(&words, rights).await.map_err(failed)?;
        Ok(())
    }
}

struct Draft {
    file: File,
    hasher: Sha256,
    head: Vec<u8>,
    bytes: u64,
}

impl Draft {
    fn write(&mut self, piece: &Bytes) -> Result<(), Failure> {
        self.bytes += piece.len() as u64;
        if self.bytes > PROGRAM_BYTES {
            return Err(Refusal::TooLong.into());
        }
        let missing = elf::HEAD_BYTES - self.head.len();
        self.head.extend(piece.iter().take(missing));
        self.hasher.update(piece);
        self.file.write_all(piece)?;
        Ok(())
    }
}

/// The next piece of a body. `None` at its end.
async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
    let broken = |text: String| Failure::from(Refusal::Unfit(text));
    loop {
        let frame = timeout(PIECE_LIMIT, body.frame()).await;
        let frame = frame.map_err(|_| broken("the body stopped arriving".to_owned()))?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(broken(format!("the body broke off: {error}"))),
            Some(Ok(frame)) => {
                if let Ok(piece) = frame.into_data() {
                    return Ok(Some(piece));
                }
            }
        }
    }
}

/// Reads and drops the rest of a body of an allowed length.
async fn drain(body: &mut Incoming) {
    let mut bytes = 0;
    while bytes <= PROGRAM_BYTES
        && let Ok(Some(piece)) = next(body).await
    {
        bytes += piece.len() as u64;
    }
}
