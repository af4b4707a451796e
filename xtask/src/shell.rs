//! Running other programs, and speaking to the person at the terminal.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

/// Something that has to be installed first: exit status 69.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) String);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// Prints a line on stdout.
pub(crate) fn say(line: &str) {
    // A closed pipe is the reader's choice, not an error of ours.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints an error on stderr.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "error: {line}");
}

/// The root of the checkout `cargo xtask` was called in. Not the one it was compiled in: checkouts
/// share a target directory.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
        .join("..")
        .canonicalize()
        .expect("the checkout exists")
}

pub(crate) fn cache_dir() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("bellows"))
}

/// The target directory shared by all checkouts, so that a clean checkout compiles warm.
pub(crate) fn target_dir() -> Result<PathBuf> {
    match std::env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty()) {
        Some(dir) => Ok(PathBuf::from(dir)),
        None => Ok(cache_dir()?.join("target")),
    }
}

/// A cargo command in the checkout with the shared target directory.
pub(crate) fn cargo() -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target_dir()?);
    // What `cargo xtask` says of this program. Build scripts that read such words (ring's) would
    // take their crates for changed whenever cargo is called once from here and once by hand, and
    // all that uses TLS would be compiled again.
    for (name, _) in std::env::vars_os() {
        if is_about_us(&name) {
            command.env_remove(name);
        }
    }
    Ok(command)
}

fn is_about_us(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// Runs a command with its output shown; a non-zero status is an error that names the command.
pub(crate) fn run(what: &str, command: &mut Command) -> Result<()> {
    run_with(what, command, |_| Ok(()))
}

/// As [`run`], with something done while the command runs.
pub(crate) fn run_with(
    what: &str,
    command: &mut Command,
    meanwhile: impl FnOnce(&mut Child) -> Result<()>,
) -> Result<()> {
    let started = Instant::now();
    say(&format!("==> {what}"));
    let mut child = command.spawn().with_context(|| {
        format!(
            "{what}: could not start {}",
            command.get_program().display()
        )
    })?;
    let done = meanwhile(&mut child);
    let status = child.wait()?;
    done?;
    if !status.success() {
        bail!("{what} failed ({status}): {}", shown(command));
    }
    say(&format!(
        "    {what}: {:.1} s",
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Runs a command and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("could not start {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!("{} failed ({})", shown(command), output.status);
    }
    String::from_utf8(output.stdout).context("output is not UTF-8")
}

/// Whether a command succeeds. Its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// The command line, for messages.
pub(crate) fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// A program of crates.io, by name and version, from the project's cache of tools. Where it is
/// missing, this cargo installs it.
pub(crate) fn tool(
    (name, version): (&str, &str),
    cargo: impl FnOnce() -> Result<Command>,
) -> Result<PathBuf> {
    let root = cache_dir()?.join("tools").join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.is_file() {
        let mut command = cargo()?;
        command
            .args(["install", name, "--version", version, "--locked", "--root"])
            .arg(&root)
            .env("CARGO_TARGET_DIR", target_dir()?.join("tools"));
        run(&format!("install {name} {version}"), &mut command)?;
    }
    Ok(program)
}

/// Whether a program is on the PATH.
pub(crate) fn on_path(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Whether we are root (by the owner of our own /proc entry, which needs no system call).
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}
