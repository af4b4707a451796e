//! Docker where none is installed: its server in namespaces of its own, of Debian's package in the
//! store.
//!
//! ```text
//! DIR-kind/parts             folders of the store, for the scripts
//! DIR-kind/bin/              docker, kind, kubectl and helm for it
//! DIR-kind/docker.sock       of its server
//! DIR-kind/docker/, upper/   what it writes
//! DIR-kind/process           number of the machine's first process
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::super::store;
use super::image::{self, Parts, RUNC, assignment};
use crate::shell;

/// Name of the node image.
const IMAGE: &str = "bellows/kind-node:1.34";
/// Configuration of the image, which an archive does not hold.
const CHANGES: [&str; 3] = [
    // systemd reads it.
    "ENV container=docker",
    "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "ENTRYPOINT [\"/usr/local/bin/entrypoint\", \"/sbin/init\"]",
];
/// Longest time until the server answers.
const START: Duration = Duration::from_secs(60);
/// Between two questions whether it does.
const PAUSE: Duration = Duration::from_millis(100);
const SCRIPT: &str = "machine.sh";
const PARTS: &str = "parts";
/// Script shared with the nodes of our own cluster.
const GROUPS: (&str, &str) = (
    "groups.sh",
    include_str!("../../../../tests/src/cluster/groups.sh"),
);

/// A machine of namespaces with Docker in it.
pub(super) struct Machine {
    here: PathBuf,
    /// Control group, a different one for each directory.
    group: String,
}

impl Machine {
    /// The machine beside a directory. Ending another cluster removes the directory itself.
    pub(super) fn beside(dir: &Path, suffix: &str) -> Result<Self> {
        let dir = std::path::absolute(dir)?;
        let name = dir.file_name().context("a directory with a name")?;
        let mut name = name.to_owned();
        name.push(suffix);
        let here = dir.with_file_name(name);
        let digest = store::digest_of(here.as_os_str().as_encoded_bytes())?;
        let group = format!("bellows-kind-{}", &digest[..8]);
        Ok(Self { here, group })
    }

    /// Whether it was started and not ended, though its processes may be gone.
    pub(super) fn is_there(&self) -> bool {
        self.here.join(PARTS).is_file()
    }

    /// Kubeconfig of its cluster.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.here.join("kubeconfig")
    }

    /// Directory of its files.
    pub(super) fn dir(&self) -> &Path {
        &self.here
    }

    /// Directory of its programs.
    pub(super) fn bin(&self) -> PathBuf {
        self.here.join("bin")
    }

    /// A PATH that has them first.
    pub(super) fn path(&self) -> Result<OsString> {
        let others = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(self.bin()).chain(std::env::split_paths(&others));
        Ok(std::env::join_paths(all)?)
    }

    /// A command of one of its programs.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin().join(program));
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }

    /// Starts it, with the node image in it, if that is not so already.
    pub(super) fn start(&self) -> Result<()> {
        if self.is_there() {
            let mut inspect = self.command("docker");
            if shell::succeeds(inspect.args(["image", "inspect", IMAGE])) {
                return Ok(());
            }
            self.end()?;
        }
        let parts = Parts::ensure()?;
        let archive = image::ensure(&parts)?;
        shell::say("==> start Docker in a machine of namespaces");
        self.write(&parts)?;
        self.wait(self.spawn()?)?;
        let mut import = self.command("docker");
        import.arg("import");
        for change in CHANGES {
            import.args(["--change", change]);
        }
        import.arg(archive).arg(IMAGE);
        shell::run("put the node image into it", &mut import)
    }

    /// Ends the machine and removes its files.
    pub(super) fn end(&self) -> Result<()> {
        if !self.is_there() {
            return Ok(());
        }
        let mut stop = Command::new("sh");
        stop.arg(self.here.join(SCRIPT)).arg("stop");
        shell::run("end Docker", stop.arg(&self.here).arg(&self.group))?;
        let removed = fs::remove_dir_all(&self.here);
        removed.with_context(|| format!("cannot remove {}", self.here.display()))
    }

    fn write(&self, parts: &Parts) -> Result<()> {
        fs::create_dir_all(self.bin())?;
        let parts = format!(
            "{}{}",
            parts.as_script(&["docker", "helm", "kind", "plane"]),
            assignment("image", Path::new(IMAGE))
        );
        fs::write(self.here.join(PARTS), parts)?;
        fs::write(self.here.join(SCRIPT), include_str!("machine.sh"))?;
        fs::write(self.here.join(GROUPS.0), GROUPS.1)?;
        fs::write(self.here.join(RUNC.0), RUNC.1)?;
        for program in ["docker", "helm", "kind", "kubectl"] {
            let file = self.bin().join(program);
            fs::write(&file, include_str!("client.sh"))?;
            let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(file, executable)?;
        }
        Ok(())
    }

    /// A process of no terminal, so that no key ends it.
    fn spawn(&self) -> Result<Child> {
        let log = File::create(self.log())?;
        let mut start = Command::new("setsid");
        start.arg("sh").arg(self.here.join(SCRIPT)).arg("start");
        start.arg(&self.here).arg(&self.group);
        start.stdin(Stdio::null()).stdout(log.try_clone()?);
        start.stderr(log).spawn().context("could not start setsid")
    }

    fn wait(&self, mut process: Child) -> Result<()> {
        let began = Instant::now();
        while !self.answers() {
            let ended = process.try_wait()?;
            if ended.is_some() || began.elapsed() > START {
                let read = |file| fs::read_to_string(file).unwrap_or_default();
                let docker = read(self.here.join("dockerd.log"));
                let all = docker.lines().collect::<Vec<_>>();
                let last = all[all.len().saturating_sub(20)..].join("\n");
                bail!("Docker does not start:\n{}{last}", read(self.log()));
            }
            std::thread::park_timeout(PAUSE);
        }
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.here.join("machine.log")
    }

    fn answers(&self) -> bool {
        shell::succeeds(self.command("docker").arg("info"))
    }
}
