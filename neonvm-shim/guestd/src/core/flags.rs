//! The daemon's command line. Parsed by hand: a parser crate would be a quarter of the binary,
//! which every guest carries.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::cpus::CpuPolicy;

/// Text that `--help` prints to stdout.
pub const USAGE: &str = "\
neonvmd: the guest daemon: CPUs on and off, state of the guest, files into the guest

  --addr ADDR           address to serve on [0.0.0.0:25183]
  --cpu-policy POLICY   online-all: every CPU that is there, unless PUT /cpu or the kernel's maxcpus= says less;
                        managed: only PUT /cpu switches CPUs [online-all]
  --sysfs DIR           where sysfs is [/sys]
  --procfs DIR          where procfs is [/proc]
  --files-root DIR      where the paths of /files begin [/]
  --runtime DIR         where the VM's runtime drive is mounted [/neonvm/runtime]; a guestd.key on it is what callers must show
  --render-units DIR    where the units of files that follow the guest are [/etc/bellows/render.d]
  --render-notes DIR    where signals that programs are owed are noted [/var/lib/bellows/render]
  --help, --version
";

/// Command line after parsing, with the default for every missing flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flags {
    /// `--addr`: address and port that the daemon serves on.
    pub addr: SocketAddr,
    /// `--cpu-policy`: whether the daemon switches CPUs by itself.
    pub cpu_policy: CpuPolicy,
    /// `--sysfs`: mount point of sysfs. Tests pass a directory of their own.
    pub sysfs: PathBuf,
    /// `--procfs`: mount point of procfs. Tests pass a directory of their own.
    pub procfs: PathBuf,
    /// `--files-root`: root of the paths of `/files`; `/` in a guest.
    pub files_root: PathBuf,
    /// `--runtime`: mount point of the VM's runtime drive. Callers must show the `guestd.key` on
    /// it, if there is one.
    pub runtime: PathBuf,
    /// `--render-units`: folder of the units of files that follow the guest.
    pub render_units: PathBuf,
    /// `--render-notes`: folder of the notes of owed signals.
    pub render_notes: PathBuf,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            addr: SocketAddr::from(([0, 0, 0, 0], 25183)),
            cpu_policy: CpuPolicy::OnlineAll,
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
            files_root: "/".into(),
            runtime: "/neonvm/runtime".into(),
            render_units: "/etc/bellows/render.d".into(),
            render_notes: "/var/lib/bellows/render".into(),
        }
    }
}

/// Action that the command line selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// Run the daemon with these flags.
    Run(Flags),
    /// Print [`USAGE`] and exit with 0.
    Help,
    /// Print the version and exit.
    Version,
}

/// Errors of the command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// The daemon has no such flag.
    #[error("unknown argument {0:?}; see --help")]
    Unknown(String),
    /// The flag lacks its value.
    #[error("{0} needs a value")]
    NoValue(String),
    /// The value of the flag is not valid.
    #[error("{value:?} is not a value of {flag}")]
    Value {
        /// Name of the flag, with its dashes.
        flag: String,
        /// Value on the command line.
        value: String,
    },
}

/// Parses `--flag value` and `--flag=value`, in any order; the last one of a kind counts.
///
/// # Errors
/// [`FlagError`].
pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Invocation, FlagError> {
    let mut flags = Flags::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let (flag, given) = match word.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        match flag.as_str() {
            "--help" | "-h" => return Ok(Invocation::Help),
            "--version" | "-V" => return Ok(Invocation::Version),
            "--addr" | "--cpu-policy" | "--sysfs" | "--procfs" | "--files-root" | "--runtime"
            | "--render-units" | "--render-notes" => {}
            _ => return Err(FlagError::Unknown(flag)),
        }
        let value = given
            .or_else(|| words.next())
            .ok_or_else(|| FlagError::NoValue(flag.clone()))?;
        let bad = || FlagError::Value {
            flag: flag.clone(),
            value: value.clone(),
        };
        match flag.as_str() {
            "--addr" => flags.addr = value.parse().map_err(|_| bad())?,
            "--sysfs" => flags.sysfs = value.into(),
            "--procfs" => flags.procfs = value.into(),
            "--files-root" => flags.files_root = value.into(),
            "--runtime" => flags.runtime = value.into(),
            "--render-units" => flags.render_units = value.into(),
            "--render-notes" => flags.render_notes = value.into(),
            _ => {
                flags.cpu_policy = match value.as_str() {
                    "online-all" => CpuPolicy::OnlineAll,
                    "managed" => CpuPolicy::Managed,
                    _ => return Err(bad()),
                };
            }
        }
    }
    Ok(Invocation::Run(flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Invocation, FlagError> {
        parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn both_spellings_of_flags_and_the_defaults_are_read() {
        assert_eq!(of(&[]), Ok(Invocation::Run(Flags::default())));
        let flags = Flags {
            addr: SocketAddr::from(([127, 0, 0, 1], 1)),
            cpu_policy: CpuPolicy::Managed,
            sysfs: "/s".into(),
            ..Flags::default()
        };
        let words = [
            "--addr=127.0.0.1:1",
            "--cpu-policy",
            "managed",
            "--sysfs=/s",
        ];
        assert_eq!(of(&words), Ok(Invocation::Run(flags)));
        assert_eq!(of(&["--help"]), Ok(Invocation::Help));
        assert_eq!(of(&["--version"]), Ok(Invocation::Version));
    }

    #[test]
    fn invalid_flags_are_named() {
        assert_eq!(of(&["--what"]), Err(FlagError::Unknown("--what".into())));
        assert_eq!(of(&["x"]), Err(FlagError::Unknown("x".into())));
        assert_eq!(of(&["--addr"]), Err(FlagError::NoValue("--addr".into())));
        for (flag, value) in [("--addr", "here"), ("--cpu-policy", "some")] {
            let error = FlagError::Value {
                flag: flag.into(),
                value: value.into(),
            };
            assert_eq!(of(&[flag, value]), Err(error));
        }
    }
}
