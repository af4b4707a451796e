//! Records of what people do on one machine: the journal's part `people`.
//!
//! One record is on the disk before an action is carried out, and a second one tells its outcome.
//! Each command is one run of the journal's writer, so the two records belong together. An action
//! that cannot be recorded is not carried out. In a cluster nothing is recorded, because the API
//! server's audit log has the request.

use std::time::Duration;

use daemon_kit::clock::Clock;
use daemon_kit::journal::{Identity, Journal, Limits, OpenError};
use daemon_kit::state_folder::LockError;
use protocol::journal::{Action, Record};
use protocol::units::Resources;

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::instance::Instance;
use crate::places::StateDir;
use crate::terminal::err;

/// Name of the journal's part, and of its folder.
pub(crate) const PART: &str = "people";
/// Part of the journal in which the controller writes the changes of sets.
pub(crate) const SETS: &str = "sets";
/// Part of the journal in which the driver of rollouts writes what it does.
pub(crate) const FLEET: &str = "fleet";
/// Most bytes of a reason, and of the text of a failure.
const MAX_TEXT_BYTES: usize = 1_000;
/// Longest wait for another command that writes an action.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(50);

/// A reason as an argument of a command.
pub(crate) fn reason(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES {
        return Err(format!("it must have 1 to {MAX_TEXT_BYTES} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err("it must be one line of printable text".into());
    }
    Ok(text.to_owned())
}

/// Carries out an action between its two records. Fills in the person and the times.
///
/// # Errors
///
/// Those of `carry_out`. 75 if another command holds the journal, and 69 if it cannot be written;
/// nothing is carried out then.
pub(crate) async fn recorded<T>(
    context: &Context,
    action: Action,
    carry_out: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    if context.asks_cluster() {
        return carry_out.await;
    }
    let clock = Clock::new();
    let journal = open(&context.state()?, clock).await?;
    let begun = Action {
        by: person(),
        t: clock.now().0,
        ..action
    };
    if !write(&journal, &begun).await {
        journal.close().await;
        return Err(unwritten("the disk does not take its record"));
    }
    let outcome = carry_out.await;
    let ended = Action {
        ok: Some(outcome.is_ok()),
        note: outcome.as_ref().err().map(|fail| shortened(fail.what())),
        t: clock.now().0,
        ..begun
    };
    if !write(&journal, &ended).await {
        err("warning: the journal does not have the outcome of this command");
    }
    journal.close().await;
    outcome
}

/// Writes a record. Returns whether it is on the disk.
async fn write(journal: &Journal, action: &Action) -> bool {
    match journal.append(&Record::Action(action.clone()), true) {
        Some(line) => line.durable().await,
        None => false,
    }
}

/// Opens the journal. Waits for another command that has it open.
async fn open(state: &StateDir, clock: Clock) -> Outcome<Journal> {
    let instance = Instance::load(state)?;
    let identity = Identity {
        part: PART.into(),
        node: instance.map_or_else(String::new, |instance| instance.node().to_owned()),
        build: env!("CARGO_PKG_VERSION").into(),
        compute_unit: Resources::default(),
        run: u64::try_from(clock.wall().0).unwrap_or(0),
    };
    let folder = state.journal().join(PART);
    let try_open = || {
        Journal::open(
            &folder,
            identity.clone(),
            Limits::default(),
            clock,
            Vec::new(),
        )
    };
    let begun = clock.now();
    loop {
        match try_open() {
            Ok(journal) => return Ok(journal),
            Err(OpenError::Lock(LockError::Locked(_)))
                if clock.now().since(begun).to_duration() < LOCK_PATIENCE =>
            {
                tokio::time::sleep(LOCK_POLL).await;
            }
            Err(error @ OpenError::Lock(LockError::Locked(_))) => {
                return Err(Fail::try_again(daemon_kit::chain(&error))
                    .rule("one command at a time writes what people do"));
            }
            Err(error) => return Err(unwritten(&daemon_kit::chain(&error))),
        }
    }
}

fn unwritten(why: &str) -> Fail {
    Fail::missing(format!("the command cannot be recorded: {why}"))
        .rule("what people do is in the journal before it is done")
        .fix("make room on the disk, or let this user write the state directory")
}

/// Name and number of the user who runs the command. With sudo, also the user's name before it.
fn person() -> String {
    let uid = nix::unistd::getuid();
    let user = nix::unistd::User::from_uid(uid).ok().flatten();
    let name = user.map_or_else(
        || format!("uid {uid}"),
        |user| format!("{} (uid {uid})", user.name),
    );
    match std::env::var("SUDO_USER") {
        Ok(before) if uid.is_root() && !before.is_empty() => {
            format!("{name}, {} by sudo", shortened(&before))
        }
        _ => name,
    }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_one_line_of_bounded_length() {
        assert_eq!(reason("a try").as_deref(), Ok("a try"));
        for odd in ["", " ", "two\nlines", &"x".repeat(MAX_TEXT_BYTES + 1)] {
            assert!(reason(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        let text = "ä".repeat(MAX_TEXT_BYTES);
        assert_eq!(shortened(&text).len(), MAX_TEXT_BYTES);
        assert_eq!(shortened("short"), "short");
    }
}
