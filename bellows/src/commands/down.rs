//! `bellows down`: ends `bellows up`, and on request the guests and the state too.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use hyper::http::Method;
use serde_json::json;

use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::guests;
use crate::instance::lock::{self, Holder};
use crate::places::StateDir;
use crate::progress::Progress;
use crate::terminal::{ask, can_ask, out};

/// Interval at which the process and the guests are read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// End `bellows up`.
///
/// Guests keep running: the next `bellows up` takes them over as they are. With --stop-vms they are
/// powered down first.
#[derive(Debug, Clone, Args)]
pub(crate) struct DownArgs {
    /// Power all guests down; they boot again at the next `bellows up`
    #[arg(long)]
    stop_vms: bool,
    /// Remove the state directory too: every VM with its disk, every object, every key
    #[arg(long)]
    purge: bool,
    /// Do not ask before removing
    #[arg(short, long, requires = "purge")]
    yes: bool,
    /// Give up after this many seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
}

pub(crate) async fn run(context: &Context, args: &DownArgs) -> Outcome {
    let state = context.state()?;
    if args.purge {
        check_purge(&state, args).await?;
    }
    let mut progress = Progress::new();
    let before = guests::running(&state).await.len();
    let was_running = end_up(&state, args, &mut progress).await?;
    if args.stop_vms {
        // Guests that the ending process has not powered down.
        guests::stop_all(&state, guests::GRACE, &mut |text| progress.say(text)).await;
    }
    progress.clear();
    let place = state.path().display();
    out(&if was_running {
        format!("bellows up on {place} has ended")
    } else {
        format!("no bellows up ran on {place}")
    });
    let left = guests::running(&state).await.len();
    if left > 0 {
        out(&format!(
            "{} running; the next bellows up takes them over, bellows down --stop-vms powers them down",
            if left == 1 {
                "1 guest keeps".to_owned()
            } else {
                format!("{left} guests keep")
            }
        ));
    }
    if before > left {
        out(&format!("{} powered down", count(before - left)));
    }
    if args.purge { purge(&state) } else { Ok(()) }
}

fn count(guests: usize) -> String {
    if guests == 1 {
        "1 guest".into()
    } else {
        format!("{guests} guests")
    }
}

async fn check_purge(state: &StateDir, args: &DownArgs) -> Outcome {
    let guests = guests::running(state).await;
    if !guests.is_empty() && !args.stop_vms {
        return Err(Fail::usage(format!(
            "--purge would remove the disks of running guests: {}",
            guests.join(", ")
        ))
        .rule("guests keep running after bellows down")
        .fix("power them down too: bellows down --stop-vms --purge"));
    }
    let place = state.path().display();
    if args.yes {
        return Ok(());
    }
    if !can_ask() {
        return Err(Fail::usage(format!(
            "--purge removes {place} with every VM disk in it, and nobody can be asked"
        ))
        .fix("say yes beforehand: --yes"));
    }
    if ask(&format!("Remove {place} with every VM disk in it?")) {
        Ok(())
    } else {
        Err(Fail::not_so("nothing was done"))
    }
}

/// Ends the process that holds the state directory. Returns whether there was one.
async fn end_up(state: &StateDir, args: &DownArgs, progress: &mut Progress) -> Outcome<bool> {
    let Holder::Process(pid) = lock::holder(state) else {
        return Ok(false);
    };
    let order = json!({"stop_vms": args.stop_vms});
    let asked = crate::unix_http::exchange(
        &state.admin_socket(),
        Method::POST,
        "/v1/shutdown",
        Some(&order),
    )
    .await;
    if let Err(error) = asked {
        // The process may be starting or may not answer. A signal requests the same.
        let Some(pid) = pid else {
            return Err(Fail::try_again(format!(
                "{} is locked, but not by anybody who answers",
                state.path().display()
            ))
            .fix("try again in a moment"));
        };
        tracing::debug!(error = daemon_kit::chain(&error), pid, "asking by signal");
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGTERM,
        )
        .map_err(|error| {
            Fail::try_again(format!("process {pid} cannot be asked to end: {error}"))
        })?;
    }
    while lock::holder(state) != Holder::Nobody {
        if progress.elapsed().as_secs() >= args.timeout {
            return Err(Fail::try_again(format!(
                "bellows up still holds {} after {} s",
                state.path().display(),
                args.timeout
            ))
            .fix("see what it waits for: bellows status; ending it by force is safe for guests"));
        }
        let left = if args.stop_vms {
            guests::running(state).await.len()
        } else {
            0
        };
        progress.say(&if left > 0 {
            format!("waiting for {} to power down", count(left))
        } else {
            "waiting for bellows up to end".into()
        });
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(true)
}

fn purge(state: &StateDir) -> Outcome {
    let place = state.path();
    if !place.exists() {
        out(&format!("{} is gone already", place.display()));
        return Ok(());
    }
    check_is_ours(place)?;
    std::fs::remove_dir_all(place).map_err(|error| {
        Fail::missing(format!("{} cannot be removed: {error}", place.display()))
    })?;
    out(&format!("{} removed", place.display()));
    Ok(())
}

/// Refuses to remove a directory that no `bellows up` has used.
fn check_is_ours(place: &Path) -> Outcome {
    let is_ours = place.join("instance.json").is_file() || place.join("lock").is_file();
    if is_ours {
        return Ok(());
    }
    Err(Fail::usage(format!(
        "{} is not removed: it is no state directory",
        place.display()
    ))
    .rule("a state directory holds instance.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_state_directory_is_purged() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::choose(Some(dir.path())).unwrap();
        assert_eq!(purge(&state).unwrap_err().exit() as u8, 64);
        assert!(dir.path().exists());
        std::fs::write(state.instance(), "{}").unwrap();
        purge(&state).unwrap();
        assert!(!dir.path().exists());
        purge(&state).unwrap();
    }
}
