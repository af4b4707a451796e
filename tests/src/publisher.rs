//! A publisher of signed releases: a folder of them, and one of keys.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::process::Command;

use crate::bellows_bin;

/// Two folders, for releases and for keys, until it is dropped.
#[derive(Debug)]
pub struct Publisher {
    dir: TempDir,
}

impl Publisher {
    /// Without a repository.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        Ok(Self { dir })
    }

    /// Makes the repository with a channel that names no release.
    ///
    /// # Errors
    /// With what the command printed.
    pub async fn init(&self, channel: &str) -> Result<()> {
        self.publish("init", &[]).await?;
        self.publish("channel", &[channel]).await
    }

    /// Signs a release of a monitor that prints the version as its own and speaks the links of this
    /// build. It may be newer than the fleet under test, so it says that it is independent of the
    /// fleet's version.
    ///
    /// # Errors
    /// With what the command printed.
    pub async fn release(&self, version: &str, monitor: &[u8]) -> Result<()> {
        let program = self.dir.path().join(format!("monitor-{version}"));
        std::fs::write(&program, monitor)?;
        std::fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        let program = format!("monitor={}", program.display());
        self.publish_release(version, &["--program", &program, "--link", "monitor=1..2"])
            .await
    }

    /// Signs a release of the image of a part, known by its digest.
    ///
    /// # Errors
    /// With what the command printed.
    pub async fn release_image(&self, version: &str, part: &str, digest: &str) -> Result<()> {
        let image = format!("{part}={digest}");
        self.publish_release(version, &["--image", &image]).await
    }

    /// Signs a release of a control plane that speaks no version of the monitor's link of this
    /// build.
    ///
    /// # Errors
    /// With what the command printed.
    pub async fn release_foreign(&self, version: &str) -> Result<()> {
        let image = format!("fleet=sha256:{}", "0a".repeat(32));
        let words = ["--image", &image, "--link", "monitor=9..9"];
        self.publish_release(version, &words).await
    }

    async fn publish_release(&self, version: &str, words: &[&str]) -> Result<()> {
        let words = [words, &["--to", version, "--independent"]].concat();
        self.publish("release", &words).await
    }

    /// Lets a channel name a release.
    ///
    /// # Errors
    /// With what the command printed.
    pub async fn promote(&self, version: &str, channel: &str, is_critical: bool) -> Result<()> {
        let words = ["--to", version, "--channel", channel, "--critical"];
        let given = if is_critical { &words[..] } else { &words[..4] };
        self.publish("promote", given).await
    }

    /// Address of the repository on this machine.
    #[must_use]
    pub fn url(&self) -> String {
        format!("file://{}/", self.releases().display())
    }

    /// File of the repository's root.
    #[must_use]
    pub fn root(&self) -> String {
        let root = self.releases().join("metadata/1.root.json");
        root.display().to_string()
    }

    /// Folder of the repository, for a server of files.
    #[must_use]
    pub fn releases(&self) -> PathBuf {
        self.dir.path().join("releases")
    }

    async fn publish(&self, verb: &str, words: &[&str]) -> Result<()> {
        let mut command = Command::new(bellows_bin());
        command
            .args(["fleet", "publish", verb])
            .arg(self.releases());
        command.args(words).arg("--keys");
        command.arg(self.dir.path().join("keys"));
        let output = command.output().await.context("start bellows")?;
        ensure!(output.status.success(), "publish {verb}: {output:?}");
        Ok(())
    }
}

/// Digest of a program, as objects of the fleet have it.
#[must_use]
pub fn sha256_of(program: &[u8]) -> String {
    let digest = Sha256::digest(program);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
