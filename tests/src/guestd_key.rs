//! The key of a guest's daemon and the password of its database, read as root where the guest's
//! runner keeps them.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use protocol::postgres;
use serde_json::Value;

/// Directory of a runner that is the process of a pod's container.
const POD_RUNDIR: &str = "vm/images/run";

/// The key of the guest at an address of this machine or of a pod on it; none for a guest that has
/// none.
#[must_use]
pub fn of_guest(ip: IpAddr) -> Option<String> {
    let key = fs::read_to_string(rundir_of(ip)?.join("guestd.key")).ok()?;
    Some(key.trim().to_owned())
}

/// The password of the database in the guest at an address, as its runner has it from the VM's
/// secret.
#[must_use]
pub fn password_of_guest(ip: IpAddr) -> Option<String> {
    let place = format!("mounts{}/{}", postgres::MOUNT_PATH, postgres::KEY);
    fs::read_to_string(rundir_of(ip)?.join(place)).ok()
}

/// The directory of the runner of the guest at an address.
fn rundir_of(ip: IpAddr) -> Option<PathBuf> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut dirs = processes.filter_map(|process| rundir(&process.path()));
    dirs.find(|dir| {
        let config = fs::read(dir.join("config.json")).unwrap_or_default();
        let config: Value = serde_json::from_slice(&config).unwrap_or_default();
        config["pod_ip"] == ip.to_string()
    })
}

/// The directory of a runner, seen from outside its container, if the process is one.
fn rundir(process: &Path) -> Option<PathBuf> {
    let cmdline = fs::read_to_string(process.join("cmdline")).ok()?;
    let mut words = cmdline.split('\0');
    let program = Path::new(words.next()?).file_name()?.to_str()?;
    if !program.contains("runner") && !program.contains("bellows") {
        return None;
    }
    let words: Vec<&str> = words.collect();
    let after = |flag| {
        let at = words.iter().position(|word| *word == flag)?;
        words.get(at + 1).copied()
    };
    let dir = match after("--rundir") {
        Some(dir) => dir,
        None if words.iter().any(|word| word.starts_with("-vmspec")) => POD_RUNDIR,
        None => return None,
    };
    Some(process.join("root").join(dir.trim_start_matches('/')))
}
