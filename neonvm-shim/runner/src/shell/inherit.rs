//! Limits what a command's child processes inherit: no open files, and only selected variables.

use std::io;

use tokio::process::Command;

use super::sys;

/// Variables that a runner inherits; a trailing `*` matches any suffix.
const OF_RUNNERS: [&str; 8] = [
    "PATH",
    "LANG",
    "LC_*",
    "TZ",
    "TMPDIR",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "BELLOWS_LOG",
];
/// Variables that QEMU and passt inherit.
const OF_GUESTS: [&str; 2] = ["PATH", "LANG"];

/// First descriptor after the standard ones.
const FIRST_OTHER: u32 = 3;

/// Marks every open file, except the standard ones, as not inherited by programs that this process
/// starts. Files that it opens later are marked anyway.
///
/// # Errors
/// The kernel's error.
pub fn no_files() -> io::Result<()> {
    sys::close_on_exec_from(FIRST_OTHER)
}

/// Limits a command's environment to these variables; a trailing `*` matches any suffix.
pub fn only(command: &mut Command, names: &[&str]) {
    command.env_clear();
    command.envs(std::env::vars_os().filter(|(name, _)| {
        name.to_str()
            .is_some_and(|name| names.iter().any(|kept| matches(kept, name)))
    }));
}

pub(crate) fn only_for_runner(command: &mut Command) {
    only(command, &OF_RUNNERS);
}

pub(super) fn only_for_guest(command: &mut Command) {
    only(command, &OF_GUESTS);
}

fn matches(kept: &str, name: &str) -> bool {
    match kept.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == kept,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn variables_match_by_name_or_prefix() {
        assert!(matches("PATH", "PATH") && matches("LC_*", "LC_ALL"));
        assert!(!matches("PATH", "PATHS") && !matches("LC_*", "LANG"));
    }

    #[tokio::test]
    async fn inherited_file_is_not_passed_on() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let number = ours.as_raw_fd();
        let flags = rustix::io::fcntl_getfd(&ours).unwrap();
        rustix::io::fcntl_setfd(&ours, flags & !rustix::io::FdFlags::CLOEXEC).unwrap();
        no_files().unwrap();
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(format!("test ! -e /proc/self/fd/{number}"));
        assert!(command.status().await.unwrap().success(), "file {number}");
    }
}
