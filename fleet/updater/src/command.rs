//! Commands of the updater, for one package manager.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use protocol::release::RELEASE;
use serde_json::json;

use crate::core::upgrade::Outcome;
use crate::shell::files::Files;
use crate::shell::packages::Manager;
use crate::shell::{Error, check, status, timer, upgrade};

/// Brings the package vm-monitor of this machine to the version of its channel
#[derive(Debug, Parser)]
#[command(name = "bellows-updater", version = RELEASE)]
struct Options {
    #[command(subcommand)]
    command: Task,
    /// Form of what is printed
    #[arg(short, long, value_enum, default_value_t = Form::Text, global = true)]
    output: Form,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Task {
    /// Installs the channel's version if it is due; puts the old one back if the new one fails
    Upgrade,
    /// Removes the schedule if the version is critical or the monitor ended; installs nothing
    Check,
    /// Brings the schedule in /run/vm-monitor/schedule into force for the timer of upgrades
    SetSchedule,
    /// Takes the schedule out of force: upgrades are then tried each half hour
    ClearSchedule,
    /// Prints what is installed, what the channel names and how the last attempt ended
    Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// How the process ends. 0 is also a run without an attempt.
#[derive(Debug, Clone, Copy)]
enum Exit {
    /// Wrong usage, settings or schedule.
    Input = 64,
    /// Something of the machine is missing or failed.
    Machine = 69,
    /// The attempt failed. The next one may not.
    Again = 75,
}

/// Runs the command that the arguments of the process name.
pub fn main<M: Manager>() -> ExitCode {
    // The only way to fail is that another one is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // Nothing can be done about a closed standard output.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(Exit::Input as u8)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match run::<M>(&options) {
        Ok((text, exit)) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            exit.map_or(ExitCode::SUCCESS, |exit| ExitCode::from(exit as u8))
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "bellows-updater: {error}");
            ExitCode::from(match error {
                Error::Input(_) => Exit::Input as u8,
                Error::Machine(_) => Exit::Machine as u8,
            })
        }
    }
}

fn run<M: Manager>(options: &Options) -> Result<(String, Option<Exit>), Error> {
    let files = Files::default();
    let is_json = options.output == Form::Json;
    let changed = |name: &str, yes: &str, no: &str, has_changed: bool| {
        if is_json {
            return format!("{}\n", json!({name: has_changed}));
        }
        format!("{}\n", if has_changed { yes } else { no })
    };
    let text = match options.command {
        Task::Upgrade => {
            let outcome = upgrade::run::<M>(&files)?;
            let is_failure = outcome.as_ref().is_some_and(Outcome::is_failure);
            let text = outcome_text(outcome.as_ref(), is_json);
            return Ok((text, is_failure.then_some(Exit::Again)));
        }
        Task::Check => changed(
            "schedule_removed",
            "the schedule was removed: upgrades are tried each half hour",
            "nothing to do",
            check::run::<M>(&files)?,
        ),
        Task::SetSchedule => changed(
            "schedule_changed",
            "the schedule is in force",
            "the schedule was in force already",
            timer::set(&files)?,
        ),
        Task::ClearSchedule => changed(
            "schedule_removed",
            "the schedule was removed",
            "there was no schedule",
            timer::clear(&files)?,
        ),
        Task::Status => {
            let status = status::read::<M>(&files)?;
            if is_json {
                format!("{}\n", json!(status))
            } else {
                status.lines()
            }
        }
    };
    Ok((text, None))
}

fn outcome_text(outcome: Option<&Outcome>, is_json: bool) -> String {
    if is_json {
        return match outcome {
            Some(outcome) => format!("{}\n", json!(outcome)),
            None => format!("{}\n", json!({"result": "off"})),
        };
    }
    match outcome {
        None => "upgrades are off: set enabled in /etc/bellows/updater.toml\n".to_owned(),
        Some(Outcome::Current) => "the channel's version is installed\n".to_owned(),
        Some(Outcome::Waits { reason }) => format!("no attempt: {reason}\n"),
        Some(Outcome::Refused { version, reason }) => format!("refused {version}: {reason}\n"),
        Some(Outcome::Upgraded { version, .. }) => format!("installed {version}\n"),
        Some(Outcome::PutBack {
            from,
            version,
            reason,
        }) => format!("put {from} back in the place of {version}: {reason}\n"),
        Some(Outcome::Failed { version, reason }) => {
            format!("failed to install {version}: {reason}\n")
        }
    }
}
