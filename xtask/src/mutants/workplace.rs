//! Where mutants are built and tested: a copy of the checkout, with a target directory of its own,
//! both in the cache. The copy keeps its path and its files keep their times, so that only the
//! mutated crate is built again, also in the next run.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::cores::{CORES, Core, LEFT_OUT};
use super::list::{self, Mutant};
use super::outcomes::{self, Tested};
use crate::shell;

/// One version, so that every machine makes the same mutants.
const TOOL: (&str, &str) = ("cargo-mutants", "27.1.0");
/// How often outcomes are read, which cargo-mutants writes after each mutant.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Time between two lines before the first outcome: the unchanged code is built and tested first.
const SAY_EVERY: Duration = Duration::from_secs(30);
/// Least time a mutant's tests get, seconds. A busy machine must not make a survivor look caught.
const LEAST_TIMEOUT_S: &str = "120";
/// Statuses of cargo-mutants that tell of mutants: all caught, some missed, some timed out.
const JUDGED: [i32; 3] = [0, 2, 3];

/// The copy and the tool.
pub(super) struct Workplace {
    tree: PathBuf,
    target: PathBuf,
    /// Folder of the program.
    bin: PathBuf,
    folder: PathBuf,
    /// Held while the copy is in use.
    _lock: File,
}

impl Workplace {
    /// Installs the tool where it is missing, and brings the copy up to date.
    pub(super) fn prepare() -> Result<Self> {
        let folder = shell::cache_dir()?.join("mutants");
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let lock = File::create(folder.join("lock"))?;
        lock.try_lock()
            .context("another run of `cargo xtask mutants` uses the copy of the checkout")?;
        let workplace = Self {
            bin: tool()?,
            tree: folder.join("tree"),
            target: folder.join("target"),
            folder,
            _lock: lock,
        };
        copy(&shell::root(), &workplace.tree)?;
        Ok(workplace)
    }

    /// All mutants of all cores.
    pub(super) fn list(&self) -> Result<Vec<Mutant>> {
        let mut command = self.command(&CORES.each_ref())?;
        command.args(["--list", "--json"]);
        list::parse(&shell::output(&mut command)?)
    }

    /// Tests some mutants of a core in one of its passes, and tells each outcome as it becomes
    /// known.
    pub(super) fn test(
        &self,
        core: &Core,
        pass: usize,
        mutants: &[&Mutant],
        seed: u64,
        mut tell: impl FnMut(Tested),
    ) -> Result<()> {
        let output = self.folder.join(core.name).join(pass.to_string());
        // A file of an earlier run would be taken for this one's.
        let _ = std::fs::remove_dir_all(&output);
        std::fs::create_dir_all(&output)?;
        let log = output.join("log");
        let mut command = self.testing(core, pass, mutants, seed, &output)?;
        command
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::options().append(true).open(&log)?);
        let file = output.join("mutants.out/outcomes.json");
        let mut told = 0;
        let status = follow(&mut command, || {
            let tested = outcomes::of_sample(outcomes::read(&file), mutants);
            for one in tested.skip(told) {
                told += 1;
                tell(one);
            }
            told
        })?;
        let is_judged = status.code().is_some_and(|code| JUDGED.contains(&code));
        if !is_judged {
            bail!("cargo-mutants failed ({status}), see {}", log.display());
        }
        ensure!(
            told == mutants.len(),
            "cargo-mutants tested {told} of {} mutants, see {}",
            mutants.len(),
            log.display()
        );
        Ok(())
    }

    /// The tool, to be run in the copy on the files of these cores.
    fn command(&self, cores: &[&Core]) -> Result<Command> {
        let mut path = self.bin.clone().into_os_string();
        if let Some(rest) = std::env::var_os("PATH") {
            path.push(":");
            path.push(rest);
        }
        let mut command = shell::cargo()?;
        command
            .current_dir(&self.tree)
            .env("PATH", path)
            .env("CARGO_TARGET_DIR", &self.target)
            .args(["mutants", "--workspace", "--no-config", "--colors=never"]);
        for core in cores {
            command.arg(format!("--file={}", core.glob()));
        }
        command.args(LEFT_OUT.map(|pattern| format!("--exclude={pattern}")));
        Ok(command)
    }

    fn testing(
        &self,
        core: &Core,
        pass: usize,
        mutants: &[&Mutant],
        seed: u64,
        output: &Path,
    ) -> Result<Command> {
        let mut command = self.command(&[core])?;
        command
            .args(["--in-place", "--minimum-test-timeout", LEAST_TIMEOUT_S])
            .arg("--output")
            .arg(output)
            // Random tests give the same verdict again, and keep no case for the next mutant.
            .env("PROPTEST_RNG_SEED", seed.to_string())
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        for mutant in mutants {
            command.arg(format!("--re={}", list::exactly(&mutant.name)));
        }
        for target in core.passes[pass] {
            command.arg(format!("--cargo-arg={target}"));
        }
        if !core.arguments.is_empty() {
            command.arg("--cargo-test-arg=--");
        }
        for argument in core.arguments {
            command.arg(format!("--cargo-test-arg={argument}"));
        }
        Ok(command)
    }
}

/// The folder that holds the tool.
fn tool() -> Result<PathBuf> {
    let program = shell::tool(TOOL, shell::cargo)?;
    let folder = program.parent().context("it lies in a folder")?;
    Ok(folder.to_owned())
}

/// Runs a command to its end. `look` is called every few seconds and returns how many mutants are
/// done.
fn follow(command: &mut Command, mut look: impl FnMut() -> usize) -> Result<ExitStatus> {
    let ended = start(command)?;
    let began = Instant::now();
    let mut next = SAY_EVERY;
    loop {
        let status = match ended.recv_timeout(LOOK_EVERY) {
            Ok(status) => Some(status?),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => bail!("the thread that waited for it is gone"),
        };
        let done = look();
        if let Some(status) = status {
            return Ok(status);
        }
        if done == 0 && began.elapsed() >= next {
            next += SAY_EVERY;
            let seconds = began.elapsed().as_secs();
            shell::say(&format!(
                "    unchanged code is built and tested: {seconds} s"
            ));
        }
    }
}

fn start(command: &mut Command) -> Result<Receiver<std::io::Result<ExitStatus>>> {
    let mut child = command.spawn().with_context(|| shell::shown(command))?;
    let (to, ended) = channel();
    std::thread::spawn(move || {
        // Nobody waits any more if the program is ending.
        let _ = to.send(child.wait());
    });
    Ok(ended)
}

/// Makes `to` a copy of what git lists in `from`, and removes everything else. A file that is the
/// same already is left alone, so its time does not change.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("git");
    command.current_dir(from).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let listing = shell::output(&mut command).context("git lists the files to copy")?;
    let is_there = |name: &&str| !name.is_empty() && from.join(name).is_file();
    let names: BTreeSet<&str> = listing.split('\0').filter(is_there).collect();
    std::fs::create_dir_all(to)?;
    prune(to, to, &names)?;
    for name in names {
        let (source, copy) = (from.join(name), to.join(name));
        if std::fs::read(&copy).is_ok_and(|old| std::fs::read(&source).is_ok_and(|it| it == old)) {
            continue;
        }
        if let Some(folder) = copy.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::copy(&source, &copy).with_context(|| format!("failed to copy {name}"))?;
    }
    Ok(())
}

/// Removes the files below `folder` that are not among `names`, which are relative to `root`.
fn prune(root: &Path, folder: &Path, names: &BTreeSet<&str>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            prune(root, &path, names)?;
            continue;
        }
        let name = path.strip_prefix(root)?.to_str();
        if name.is_none_or(|name| !names.contains(name)) {
            std::fs::remove_file(&path)
                .with_context(|| format!("failed to remove {}", path.display()))?;
        }
    }
    Ok(())
}
