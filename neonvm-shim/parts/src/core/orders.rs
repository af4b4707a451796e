//! Plans orders as steps that a shell carries out one by one.
//!
//! The order of the steps is what makes a crash after any of them harmless. A trial is on the disk
//! and a watcher runs before the new program does. A return is claimed before the link moves.

use protocol::parts::{NOT_KEPT, PartPhase, PartSource, PartState, TAKEN_BACK};

use super::record::{Program, Record, Staged, Verb};
use super::refusal::Refusal;
use super::request::{Bring, Order};
use super::state::{Sight, is_noted, phase};
use super::trial::{ReturnNote, Slot, Trial, source};

/// A change of files or processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Replaces the record, durably.
    Record(Box<Record>),
    /// Renames the checked draft of a slot to its program.
    Install(Slot),
    /// Writes the file `trial`, durably.
    Trial(Trial),
    /// Points `current` at a slot, or removes it.
    Link(Option<Slot>),
    /// Starts the detached watcher of the trial.
    Watch,
    /// Makes the part's process run the program of a slot.
    Change(Slot),
    /// Removes `trial`: the program is kept, or never ran. Fails if it is `returning` already.
    EndTrial,
    /// Renames `trial` to `returning`. Fails if the trial has ended otherwise.
    Claim,
    /// Writes the reason of a return, unless there is one of this token.
    Note(ReturnNote),
    /// Ends the process if it runs the program of this slot. Init starts the other one.
    Stop(Slot),
    /// Removes `returning`: the return is finished.
    Release,
}

/// What an accepted order leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// The order was carried out before. This was its response.
    Repeat(Box<PartState>),
    /// Steps, and the record after the last of them.
    Carry(Vec<Step>, Box<Record>),
}

fn repeated(record: &Record, token: &str, verb: Verb) -> Option<Plan> {
    let state = record.repeated(token, verb)?.clone();
    Some(Plan::Repeat(Box::new(state)))
}

fn newer(record: &Record, given: u64) -> Result<u64, Refusal> {
    let known = record.epoch;
    if given < known {
        return Err(Refusal::Epoch { given, known });
    }
    Ok(given)
}

fn off_trial(sight: &Sight) -> Result<(), Refusal> {
    match sight.trial.as_ref().or(sight.returning.as_ref()) {
        Some(trial) => Err(Refusal::OnTrial(format!("the program of {}", trial.token))),
        None => Ok(()),
    }
}

/// Before a body is read: the slot for its program, or the response of an earlier request.
///
/// # Errors
/// The refusal.
pub fn may_bring(
    record: &Record,
    sight: &Sight,
    request: &Bring,
) -> Result<Result<Slot, Box<PartState>>, Refusal> {
    let token = &request.token;
    if let Some(state) = record.repeated(token, Verb::Bring) {
        let slots = record.programs.values();
        return match slots.filter(|it| it.sha256 == request.sha256).count() {
            0 => Err(Refusal::OtherProgram(token.clone())),
            _ => Ok(Err(Box::new(state.clone()))),
        };
    }
    off_trial(sight)?;
    newer(record, request.epoch)?;
    Ok(Ok(Slot::idle(sight.current)))
}

/// Puts a checked program into its slot. It overwrites what was there before.
#[must_use]
pub fn brought(record: &Record, slot: Slot, request: &Bring) -> Plan {
    let mut cleared = record.clone();
    cleared.programs.remove(&slot);
    cleared.staged = None;
    cleared.epoch = cleared.epoch.max(request.epoch);
    let mut after = cleared.clone();
    let program = Program {
        version: request.version.clone(),
        sha256: request.sha256.clone(),
    };
    after.programs.insert(slot, program);
    after.staged = Some(Staged {
        slot,
        token: request.token.clone(),
        tried: false,
    });
    let steps = vec![Step::Record(Box::new(cleared)), Step::Install(slot)];
    Plan::Carry(steps, Box::new(after))
}

/// Begins a trial. `running` is the origin of the part's program now.
///
/// # Errors
/// The refusal.
pub fn attempt(
    record: &Record,
    sight: &Sight,
    order: &Order,
    running: PartSource,
    uptime_s: u64,
) -> Result<Plan, Refusal> {
    let token = &order.token;
    if let Some(plan) = repeated(record, token, Verb::Try) {
        return Ok(plan);
    }
    let epoch = newer(record, order.epoch)?;
    let staged = staged(record, token)?;
    // The daemon ended in the midst of this order.
    let begun = sight.trial.as_ref().filter(|trial| trial.token == *token);
    if begun.is_none() {
        off_trial(sight)?;
        match phase(record, sight) {
            PartPhase::Staged => {}
            PartPhase::Back => return Err(gone_back(sight, token)),
            _ => return Err(Refusal::Kept(token.clone())),
        }
    }
    let mut after = record.clone();
    after.epoch = epoch;
    after.staged = Some(Staged {
        tried: true,
        ..staged.clone()
    });
    let mut steps = Vec::new();
    if begun.is_none() {
        steps.push(Step::Trial(Trial {
            token: token.clone(),
            end_s: uptime_s + order.seconds,
            back: sight.current,
        }));
    }
    steps.extend([
        Step::Link(Some(staged.slot)),
        Step::Watch,
        Step::Record(Box::new(after.clone())),
    ]);
    if running != source(Some(staged.slot)) {
        steps.push(Step::Change(staged.slot));
    }
    Ok(Plan::Carry(steps, Box::new(after)))
}

/// Steps after a process has refused to change: the program stays staged.
#[must_use]
pub fn undo(record: &Record, trial: &Trial) -> Vec<Step> {
    let mut before = record.clone();
    if let Some(staged) = &mut before.staged {
        staged.tried = false;
    }
    vec![
        Step::Link(trial.back),
        Step::EndTrial,
        Step::Record(Box::new(before)),
    ]
}

/// Ends a trial well.
///
/// # Errors
/// The refusal.
pub fn keep(record: &Record, sight: &Sight, order: &Order) -> Result<Plan, Refusal> {
    let token = &order.token;
    if let Some(plan) = repeated(record, token, Verb::Keep) {
        return Ok(plan);
    }
    let staged = staged(record, token)?;
    let mut after = record.clone();
    after.staged = None;
    let carry = |steps| Ok(Plan::Carry(steps, Box::new(after)));
    match &sight.trial {
        // Before the link moved, nothing was on trial that could be kept.
        Some(trial) if trial.token == *token && sight.current == Some(staged.slot) => {
            carry(vec![Step::EndTrial])
        }
        Some(trial) => Err(Refusal::OnTrial(format!("the program of {}", trial.token))),
        None => match phase(record, sight) {
            PartPhase::Settled => carry(Vec::new()),
            PartPhase::Staged => Err(Refusal::Busy(format!(
                "the program of token {token} is not on trial: send try first"
            ))),
            PartPhase::Back | PartPhase::Trial => Err(gone_back(sight, token)),
        },
    }
}

/// Takes a program back: the one on trial, the one that is staged, or with a new token the one that
/// is kept, for the image's.
///
/// # Errors
/// The refusal.
pub fn back(record: &Record, sight: &Sight, order: &Order) -> Result<Plan, Refusal> {
    let token = &order.token;
    if let Some(plan) = repeated(record, token, Verb::Back) {
        return Ok(plan);
    }
    let mut after = record.clone();
    if let Some(trial) = sight.trial.as_ref().or(sight.returning.as_ref()) {
        if trial.token != *token {
            return Err(Refusal::OnTrial(format!("the program of {}", trial.token)));
        }
        return Ok(Plan::Carry(
            ending(record, trial, TAKEN_BACK),
            Box::new(after),
        ));
    }
    let is_own = record.staged.as_ref().is_some_and(|it| it.token == *token);
    let mut steps = Vec::new();
    match phase(record, sight) {
        PartPhase::Back if is_own => {}
        PartPhase::Staged if is_own => after.staged = None,
        _ if is_own || record.has(token, Verb::Keep) => return Err(Refusal::Kept(token.clone())),
        _ if record.has(token, Verb::Try) || is_noted(sight, token) => {}
        _ => {
            if let Some(slot) = sight.current {
                steps = vec![Step::Link(None), Step::Stop(slot)];
            }
        }
    }
    Ok(Plan::Carry(steps, Box::new(after)))
}

/// Steps that end a trial badly.
#[must_use]
pub fn ending(record: &Record, trial: &Trial, reason: &str) -> Vec<Step> {
    let note = ReturnNote {
        token: trial.token.clone(),
        reason: reason.to_owned(),
    };
    let mut steps = vec![Step::Claim, Step::Link(trial.back), Step::Note(note)];
    steps.extend(record.staged.as_ref().map(|staged| Step::Stop(staged.slot)));
    steps.push(Step::Release);
    steps
}

/// Steps that are due at this uptime without an order: the end of a trial, or the rest of a return.
#[must_use]
pub fn due(record: &Record, sight: &Sight, uptime_s: u64) -> Vec<Step> {
    let over = sight.trial.as_ref().filter(|it| it.end_s <= uptime_s);
    match over.or(sight.returning.as_ref()) {
        Some(trial) => ending(record, trial, NOT_KEPT),
        None => Vec::new(),
    }
}

fn staged<'a>(record: &'a Record, token: &str) -> Result<&'a Staged, Refusal> {
    match &record.staged {
        Some(staged) if staged.token == *token => Ok(staged),
        _ if record.has(token, Verb::Keep) => Err(Refusal::Kept(token.to_owned())),
        _ if record.has(token, Verb::Try) => {
            Err(Refusal::GoneBack(token.to_owned(), String::new()))
        }
        _ => Err(Refusal::NothingStaged(token.to_owned())),
    }
}

fn gone_back(sight: &Sight, token: &str) -> Refusal {
    let note = sight.note.as_ref().filter(|note| note.token == token);
    let reason = note.map(|note| format!(": {}", note.reason));
    Refusal::GoneBack(token.to_owned(), reason.unwrap_or_default())
}

#[cfg(test)]
mod tests;
