//! Why a policy is not loaded, and why a question has no answer.

use policy_contract::{Fault, Refusal};

use crate::budget::Steps;

/// Name of the program in the interpreter's messages.
pub(crate) const CHUNK: &str = "policy";

/// Longest text of a failure, characters.
const MAX_TEXT: usize = 200;

/// A policy that is not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {rule}")]
pub struct LoadError {
    /// Line of the source, from 1; 0 if there is none.
    pub line: u32,
    /// What is wrong.
    pub rule: String,
}

/// A question without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {text}", fault.word())]
pub struct Failed {
    /// Kind of the fault.
    pub fault: Fault,
    /// Details for people, with the line where there is one.
    pub text: String,
}

impl LoadError {
    pub(crate) fn of(error: &mlua::Error) -> Self {
        let (line, rule) = place(&message(error));
        Self { line, rule }
    }
}

impl From<Refusal> for LoadError {
    fn from(refusal: Refusal) -> Self {
        Self {
            line: 0,
            rule: refusal.to_string(),
        }
    }
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Self {
            fault: Fault::Output,
            text: refusal.to_string(),
        }
    }
}

impl Failed {
    /// Reads the interpreter's error. The count of steps is believed before the error's text.
    pub(crate) fn of(error: &mlua::Error, steps: &Steps) -> Self {
        let fault = match error {
            _ if steps.is_spent() => Fault::Steps,
            error if is_memory(error) => Fault::Memory,
            _ => Fault::Syntax,
        };
        let (line, rule) = place(&message(error));
        let text = match line {
            0 => rule,
            line => format!("line {line}: {rule}"),
        };
        Self { fault, text }
    }
}

fn is_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::CallbackError { cause, .. } | mlua::Error::WithContext { cause, .. } => {
            is_memory(cause)
        }
        _ => false,
    }
}

/// First line of the innermost message.
fn message(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, traceback } => {
            let text = message(cause);
            // The first place in the program itself.
            let place = traceback.lines().map(str::trim);
            let mut place = place.filter(|line| line.starts_with(&format!("{CHUNK}:")));
            match place.next().and_then(|line| line.split_whitespace().next()) {
                Some(place) if !text.starts_with(CHUNK) => {
                    format!("{}: {text}", place.trim_end_matches(':'))
                }
                _ => text,
            }
        }
        mlua::Error::RuntimeError(text) | mlua::Error::MemoryError(text) => first_line(text),
        mlua::Error::SyntaxError { message, .. } => first_line(message),
        other => first_line(&other.to_string()),
    }
}

/// The first line, cut. A value that is no text is named by its type, without its address.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let value = line
        .strip_prefix('<')
        .and_then(|rest| rest.split_once(" 0x"));
    match value {
        Some((kind, _)) => format!("error with a {kind}"),
        None => line.chars().take(MAX_TEXT).collect(),
    }
}

/// Separates `policy:3: text`.
fn place(message: &str) -> (u32, String) {
    let split = || {
        let rest = message.strip_prefix(CHUNK)?.strip_prefix(':')?;
        let (line, text) = rest.split_once(':')?;
        Some((line.parse().ok()?, text.trim().to_owned()))
    };
    split().unwrap_or_else(|| (0, message.to_owned()))
}
