//! `bellows console`: a VM's serial console, live or from its log.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use daemon_kit::unix_socket::connect;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::api::Kind;
use crate::args::VmArgs;
use crate::context::Context;
use crate::fail::{Fail, Outcome};
use crate::terminal::err;

/// Ctrl-], as in telnet and virsh.
const ESCAPE: u8 = 0x1d;
/// Keys that wait for the guest. A person types slower than a guest reads.
const KEYS_IN_FLIGHT: usize = 64;

/// Attach to a VM's console, or print its log.
///
/// Leave with Ctrl-]. The guest does not notice.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConsoleArgs {
    #[command(flatten)]
    vm: VmArgs,
    /// Print what the console said so far, and end
    #[arg(long)]
    log: bool,
    /// Print what the guest's programs wrote to their log so far, and end
    #[arg(long, conflicts_with = "log")]
    guest_log: bool,
}

pub(crate) async fn run(context: &Context, args: &ConsoleArgs) -> Outcome {
    let (namespace, name) = args.vm.key();
    let dir = rundir(context, namespace, name).await?;
    if args.log {
        return print_log(&dir, "console.log");
    }
    if args.guest_log {
        return print_log(&dir, "guest.log");
    }
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(
            Fail::usage("the console needs a terminal on both sides").fix(format!(
                "to read what it said: bellows console {namespace}/{name} --log"
            )),
        );
    }
    let socket = dir.join("console.sock");
    let stream = connect(&socket).await.map_err(|error| {
        Fail::try_again(format!("{}: {error}", socket.display()))
            .rule("the VM's runner keeps the console")
            .fix(format!(
                "see whether it runs: bellows get vms {name} -n {namespace}"
            ))
    })?;
    err(&format!("console of {namespace}/{name}; leave with Ctrl-]"));
    let _raw = RawMode::enter()?;
    bridge(stream).await
}

/// Directory of the VM's runner.
pub(crate) async fn rundir(context: &Context, namespace: &str, name: &str) -> Outcome<PathBuf> {
    let object = context.api().await?.get(Kind::Vm, namespace, name).await?;
    let pod = object["status"]["podName"].as_str().unwrap_or_default();
    if pod.is_empty() {
        return Err(
            Fail::try_again(format!("VM {namespace}/{name} has no runner yet")).fix(format!(
                "see what it waits for: bellows get vms {name} -n {namespace} -o wide"
            )),
        );
    }
    Ok(context.state()?.vms().join(format!("{namespace}_{pod}")))
}

fn print_log(dir: &Path, log: &str) -> Outcome {
    let mut found = false;
    // The rotated half of the log comes first.
    for name in [format!("{log}.1"), log.to_owned()] {
        let path = dir.join(name);
        let mut file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Fail::missing(format!("{}: {error}", path.display()))),
        };
        found = true;
        // A reader that closed the pipe is not an error.
        let _ = std::io::copy(&mut file, &mut std::io::stdout().lock());
    }
    if found {
        Ok(())
    } else {
        Err(Fail::not_so(format!("{} holds no {log}", dir.display()))
            .rule("it is written from the guest's first output on"))
    }
}

/// The terminal is in raw mode while this value lives.
struct RawMode;

impl RawMode {
    fn enter() -> Outcome<Self> {
        crossterm::terminal::enable_raw_mode()
            .map(|()| Self)
            .map_err(|error| Fail::bug(format!("the terminal cannot be set to raw mode: {error}")))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        let _ = crossterm::terminal::disable_raw_mode();
        err("\r");
    }
}

async fn bridge(stream: UnixStream) -> Outcome {
    let (mut from_guest, mut to_guest) = stream.into_split();
    let (keys, mut typed) = mpsc::channel::<Vec<u8>>(KEYS_IN_FLIGHT);
    // A blocking read of a terminal cannot be cancelled. The thread ends with the process.
    std::thread::spawn(move || read_keys(&keys));
    let mut buffer = [0_u8; 4096];
    loop {
        tokio::select! {
            read = from_guest.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return Err(Fail::not_so("the console was closed from the other side")
                    .rule("it closes when the VM's runner ends or another person attaches")),
                Ok(count) => {
                    let mut stdout = std::io::stdout().lock();
                    let _ = stdout.write_all(&buffer[..count]);
                    let _ = stdout.flush();
                }
            },
            keys = typed.recv() => match keys.as_deref().map(until_escape) {
                Some((before, escaped)) => {
                    to_guest.write_all(before).await
                        .map_err(|error| Fail::try_again(format!("the console takes no input: {error}")))?;
                    if escaped {
                        return Ok(());
                    }
                }
                None => return Ok(()),
            },
        }
    }
}

fn read_keys(keys: &mpsc::Sender<Vec<u8>>) {
    let mut buffer = [0_u8; 256];
    let mut stdin = std::io::stdin().lock();
    while let Ok(count) = stdin.read(&mut buffer) {
        if count == 0 || keys.blocking_send(buffer[..count].to_vec()).is_err() {
            return;
        }
    }
}

/// The keys before the escape key, and whether the escape key was pressed.
fn until_escape(keys: &[u8]) -> (&[u8], bool) {
    keys.iter()
        .position(|key| *key == ESCAPE)
        .map_or((keys, false), |at| (&keys[..at], true))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: N48
    #[test]
    fn ctrl_bracket_leaves_and_nothing_after_it_is_sent() {
        assert_eq!(until_escape(b"ls\r"), (&b"ls\r"[..], false));
        assert_eq!(until_escape(b"ls\x1drm -rf"), (&b"ls"[..], true));
        assert_eq!(until_escape(b""), (&b""[..], false));
    }

    #[test]
    fn a_missing_log_is_not_so_and_a_turned_one_is_printed_oldest_first() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            print_log(dir.path(), "console.log").unwrap_err().exit() as u8,
            1
        );
        std::fs::write(dir.path().join("console.log"), "x").unwrap();
        print_log(dir.path(), "console.log").unwrap();
        // The other log does not exist.
        assert!(print_log(dir.path(), "guest.log").is_err());
    }
}
