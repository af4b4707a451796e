//! Programs of revisions: fetched from a repository, checked and kept.

use fleet_core::order::{self, Refusal, Tier};
use fleet_release::Repository;
use fleet_store::{Follower, LoadedChannel};
use protocol::fleet::{ChannelProblem, NamedVersion, ReleaseManifest, Resolved, own_links};
use protocol::parts::PartName;
use semver::Version;

use super::{Channels, problem};

impl Channels {
    /// Fetches programs of the environment's revisions that turns need, and that of the newest
    /// revision, which an earlier leader kept elsewhere. One is kept only if the signed manifest of
    /// its version names the revision's hash.
    pub(super) async fn fetch_wanted(
        &self,
        channel: &LoadedChannel,
        repository: &Repository,
        follower: &Follower,
    ) {
        if follower.spec.part.is_image() {
            // Kubelets pull images, by the digest of the revision.
            return;
        }
        for (number, revision) in follower.revisions.iter().enumerate() {
            let resolved = &revision.data.resolved;
            let is_needed = number == 0 || self.missing.contains(&resolved.sha256);
            if !is_needed || self.programs.path(&resolved.sha256).is_file() {
                continue;
            }
            let fetched = self.fetch(repository, follower, resolved).await;
            let (namespace, revision) = (&channel.namespace, &revision.name);
            match fetched {
                Ok(()) => {
                    tracing::info!(namespace, revision, "fetched the program of a revision");
                }
                Err(ChannelProblem { reason, message }) => {
                    tracing::warn!(
                        namespace,
                        revision,
                        reason,
                        message,
                        "failed to fetch the program of a revision"
                    );
                }
            }
        }
    }

    async fn fetch(
        &self,
        repository: &Repository,
        follower: &Follower,
        resolved: &Resolved,
    ) -> Result<(), ChannelProblem> {
        let version = Version::parse(&resolved.version).map_err(|error| ChannelProblem {
            reason: "NotKept".to_owned(),
            message: error.to_string(),
        })?;
        let manifest = repository.manifest(&version).await;
        let manifest = manifest.map_err(|error| problem(&error))?;
        let program = repository.program(&manifest, follower.spec.part).await;
        let (program, content) = program.map_err(|error| problem(&error))?;
        if program.sha256 != resolved.sha256 {
            return Err(ChannelProblem {
                reason: "Tampered".to_owned(),
                message: format!(
                    "the revision names sha256:{}, and the signed release {version} sha256:{}",
                    resolved.sha256, program.sha256
                ),
            });
        }
        self.keep(content).await.map(drop)
    }

    async fn keep(&self, content: Vec<u8>) -> Result<String, ChannelProblem> {
        let programs = self.programs.clone();
        let kept = tokio::task::spawn_blocking(move || programs.keep_content(&content)).await;
        let unkept = |error: String| ChannelProblem {
            reason: "NotKept".to_owned(),
            message: format!("the program cannot be kept: {error}"),
        };
        kept.map_err(|error| unkept(error.to_string()))?
            .map_err(|error| unkept(error.to_string()))
    }

    /// Fetches, checks and keeps the program for an environment. An image is only named.
    pub(super) async fn resolve(
        &self,
        repository: &Repository,
        named: &NamedVersion,
        follower: &Follower,
    ) -> Result<Resolved, ChannelProblem> {
        let manifest = repository.manifest(&named.version).await;
        let manifest = manifest.map_err(|error| problem(&error))?;
        let runs = match follower.status.desired.as_str() {
            "" => follower
                .revisions
                .first()
                .map(|one| one.data.resolved.version.as_str()),
            desired => Some(desired),
        };
        let release = order::Release::of_manifest(&named.version, &manifest);
        let part = follower.spec.part;
        beside_us(tier_of(part), &release).map_err(|refusal| refused(&refusal))?;
        if let Some(runs) = runs.and_then(|version| Version::parse(version).ok()) {
            order::step(&runs, &release).map_err(|refusal| refused(&refusal))?;
        }
        let version = named.version.to_string();
        if part.is_image() {
            let (sha256, bundle) = image_of(&manifest, part)?;
            return Ok(Resolved {
                version,
                sha256,
                bundle,
            });
        }
        let program = repository.program(&manifest, part).await;
        let (program, content) = program.map_err(|error| problem(&error))?;
        self.keep(content).await?;
        Ok(Resolved {
            version,
            sha256: program.sha256,
            bundle: String::new(),
        })
    }
}

/// Digest and bundle of the image of a part, which the signed manifest names.
fn image_of(
    manifest: &ReleaseManifest,
    part: PartName,
) -> Result<(String, String), ChannelProblem> {
    let image = manifest.images.get(part.as_str());
    let named = image.and_then(|image| {
        let sha256 = image.digest.strip_prefix("sha256:")?;
        Some((sha256.to_owned(), image.bundle.clone()))
    });
    named.ok_or_else(|| ChannelProblem {
        reason: "NoImage".to_owned(),
        message: format!(
            "release {} names no image of {}: publish it with --image {}=sha256:HEX",
            manifest.version,
            part.as_str(),
            part.as_str()
        ),
    })
}

const fn tier_of(part: PartName) -> Tier {
    match part {
        PartName::Scheduler | PartName::Controller | PartName::Fleet => Tier::ControlPlane,
        PartName::Agent => Tier::Agent,
        PartName::Monitor | PartName::Guestd => Tier::Guest,
    }
}

fn refused(refusal: &Refusal) -> ChannelProblem {
    let (reason, message) = match refusal {
        Refusal::Skew(text) => ("Skew", text),
        Refusal::Order(text) => ("Order", text),
        Refusal::LowerMajor(text) => ("LowerMajor", text),
        Refusal::SteppingStone(text) => ("SteppingStone", text),
    };
    ChannelProblem {
        reason: reason.to_owned(),
        message: message.clone(),
    }
}

/// Whether a release may run beside this build, which has the control plane.
fn beside_us(tier: Tier, release: &order::Release) -> Result<(), Refusal> {
    let Ok(version) = Version::parse(env!("CARGO_PKG_VERSION")) else {
        return Ok(());
    };
    let ours = order::Release::of_links(version, &own_links());
    let name = "the control plane";
    order::skew(release, &[(name, &ours)])?;
    let running = [(name, Tier::ControlPlane, &ours.version)];
    order::order(tier, release, &running)
}
