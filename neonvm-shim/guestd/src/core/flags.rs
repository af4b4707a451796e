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
  --parts DIR           where programs that the host brings are kept [/var/lib/bellows/parts]
  --parts-run DIR       where the scripts write which processes run [/run/bellows/parts]
  --scripts DIR         where the scripts service and trial are [/usr/lib/bellows]
  --monitor-control PATH  control socket of vm-monitor [/run/vm-monitor/control.sock]
  --self-test           check the command line and what the daemon reads, bind nothing, and end
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
    /// `--parts`: folder of the programs that the host brings.
    pub parts: PathBuf,
    /// `--parts-run`: folder of what the scripts write about processes.
    pub parts_run: PathBuf,
    /// `--scripts`: folder of the guest's scripts.
    pub scripts: PathBuf,
    /// `--monitor-control`: control socket of the monitor.
    pub monitor_control: PathBuf,
    /// `--self-test`: whether the daemon only checks that it can run.
    pub self_test: bool,
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
            parts: "/var/lib/bellows/parts".into(),
            parts_run: "/run/bellows/parts".into(),
            scripts: "/usr/lib/bellows".into(),
            monitor_control: "/run/vm-monitor/control.sock".into(),
            self_test: false,
        }
    }
}

/// Flags with a value.
const VALUED: [&str; 12] = [
    "--addr",
    "--cpu-policy",
    "--sysfs",
    "--procfs",
    "--files-root",
    "--runtime",
    "--render-units",
    "--render-notes",
    "--parts",
    "--parts-run",
    "--scripts",
    "--monitor-control",
];

impl Flags {
    /// The path that a flag sets.
    fn path(&mut self, flag: &str) -> Option<&mut PathBuf> {
        Some(match flag {
            "--sysfs" => &mut self.sysfs,
            "--procfs" => &mut self.procfs,
            "--files-root" => &mut self.files_root,
            "--runtime" => &mut self.runtime,
            "--render-units" => &mut self.render_units,
            "--render-notes" => &mut self.render_notes,
            "--parts" => &mut self.parts,
            "--parts-run" => &mut self.parts_run,
            "--scripts" => &mut self.scripts,
            "--monitor-control" => &mut self.monitor_control,
            _ => return None,
        })
    }
}

/// Action that the command line selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// Run the daemon with these flags.
    Run(Box<Flags>),
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
            "--self-test" => {
                flags.self_test = true;
                continue;
            }
            known if VALUED.contains(&known) => {}
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
            "--cpu-policy" => {
                flags.cpu_policy = match value.as_str() {
                    "online-all" => CpuPolicy::OnlineAll,
                    "managed" => CpuPolicy::Managed,
                    _ => return Err(bad()),
                };
            }
            _ => {
                if let Some(path) = flags.path(&flag) {
                    *path = value.into();
                }
            }
        }
    }
    Ok(Invocation::Run(Box::new(flags)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Invocation, FlagError> {
        parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn both_spellings_of_flags_and_the_defaults_are_read() {
        assert_eq!(of(&[]), Ok(Invocation::Run(Box::default())));
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
        assert_eq!(of(&words), Ok(Invocation::Run(Box::new(flags))));
        let of_parts = Flags {
            parts: "/p".into(),
            parts_run: "/r".into(),
            scripts: "/s".into(),
            monitor_control: "/c".into(),
            self_test: true,
            ..Flags::default()
        };
        let words = [
            "--parts=/p",
            "--self-test",
            "--parts-run=/r",
            "--scripts=/s",
            "--monitor-control=/c",
        ];
        assert_eq!(of(&words), Ok(Invocation::Run(Box::new(of_parts))));
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
