//! Whether the required images are built, whether they can be built, and which accelerator guests
//! get.

use neonvm_runner::accel;
use neonvm_runner::config::Accel;
use protocol::image::ImageContent;
use vm_images::{Image, Store, host_requirements};

use super::finding::Finding;
use crate::places::{GUEST_IMAGE, RUNTIME_IMAGE, StateDir, store_dir};
use crate::progress::Progress;

/// QEMU's program in the runtime image.
const QEMU_PROGRAM: &str = "qemu-system-x86_64";

/// The program in the runtime image that connects guests.
const NETWORK_PROGRAM: &str = "passt";

/// Oldest major version of QEMU. Older ones die when a CPU is plugged again after an unplug.
const QEMU_AT_LEAST: u32 = 10;

/// The runtime image and the default guest image, as far as they are built.
pub(super) struct Images {
    runtime: Result<Option<Image>, String>,
    guest: Result<Option<Image>, String>,
}

impl Images {
    /// Looks both images up. Creates nothing, because the cache may belong to another user.
    pub(super) fn look() -> Self {
        let look = |name: &str| match store_dir() {
            Err(fail) => Err(fail.what().to_owned()),
            Ok(dir) if !dir.is_dir() => Ok(None),
            Ok(dir) => Store::open(dir)
                .and_then(|store| store.resolve(name))
                .map_err(|error| daemon_kit::chain(&error)),
        };
        Self {
            runtime: look(RUNTIME_IMAGE),
            guest: look(GUEST_IMAGE),
        }
    }

    pub(super) fn are_there(&self) -> bool {
        matches!((&self.runtime, &self.guest), (Ok(Some(_)), Ok(Some(_))))
    }

    pub(super) fn runtime_finding(&self) -> Finding {
        let (name, needed) = ("QEMU", format!("VMs run in QEMU {QEMU_AT_LEAST} or newer"));
        let fix = format!("bellows image build {RUNTIME_IMAGE}");
        match &self.runtime {
            Err(why) => Finding::missing(name, why.clone(), needed, fix),
            Ok(None) => Finding::missing(name, format!("no image {RUNTIME_IMAGE}"), needed, fix),
            Ok(Some(image)) => {
                let version = match &image.manifest.content {
                    ImageContent::Runtime(runtime) => runtime.qemu_version.clone(),
                    ImageContent::Guest(_) => String::new(),
                };
                let major = version
                    .split('.')
                    .next()
                    .and_then(|part| part.parse::<u32>().ok())
                    .unwrap_or(0);
                let found = format!(
                    "QEMU {version} in image {} {}",
                    RUNTIME_IMAGE,
                    image.digest.short()
                );
                if image.program(NETWORK_PROGRAM).is_none() {
                    let needed = "guests are connected by it, and kept from this machine";
                    Finding::missing(name, format!("{found}, without passt"), needed, fix)
                } else if major >= QEMU_AT_LEAST {
                    Finding::ok(name, found)
                } else {
                    Finding::missing(name, found, needed, fix)
                }
            }
        }
    }

    pub(super) fn guest_finding(&self) -> Finding {
        let (name, needed) = ("guest image", "VMs boot it unless they name another one");
        let fix = "cargo xtask guest-bins; then bellows image build --guest-bin-dir with the directory it prints";
        match &self.guest {
            Err(why) => Finding::missing(name, why.clone(), needed, fix),
            Ok(None) => Finding::missing(name, format!("no image {GUEST_IMAGE}"), needed, fix),
            Ok(Some(image)) => Finding::ok(name, format!("{GUEST_IMAGE} {}", image.digest.short())),
        }
    }
}

/// Whether KVM boots a guest on this machine. A device that is present may still hang.
pub(super) async fn accelerator(
    images: &Images,
    state: &StateDir,
    probe: bool,
    progress: &mut Progress,
) -> Finding {
    let name = "accelerator";
    let needed = "with KVM guests run at full speed; without it they are translated, several times slower, and all else works";
    let Ok(Some(Some(qemu))) = images
        .runtime
        .as_ref()
        .map(|image| image.as_ref().map(|image| image.program(QEMU_PROGRAM)))
    else {
        return Finding::degraded(
            name,
            "not known: there is no QEMU to try it with",
            needed,
            format!("bellows image build {RUNTIME_IMAGE}, then check again"),
        );
    };
    if !probe {
        return Finding::ok(name, "not probed");
    }
    progress.say("booting a tiny guest to see whether KVM works");
    // Runners of this instance read the result from the state directory. It is not created for
    // that.
    let knowledge = state.path().is_dir().then(|| state.path());
    let verdict = accel::probe(&qemu, knowledge).await;
    match verdict.accel {
        Accel::Kvm => Finding::ok(name, verdict.reason()),
        Accel::Tcg => Finding::degraded(
            name,
            verdict.reason(),
            needed,
            "use a machine with hardware virtualisation; in a VM switch nested virtualisation on; in a container pass /dev/kvm in",
        ),
    }
}

/// Programs that image builds need. Required only while an image is missing.
pub(super) fn build_tools(images_are_there: bool) -> Finding {
    let missing: Vec<_> = host_requirements()
        .into_iter()
        .filter(|requirement| !requirement.present)
        .collect();
    let is_root = nix::unistd::geteuid().is_root();
    judge_build_tools(
        &missing
            .iter()
            .map(|one| (one.name, one.package))
            .collect::<Vec<_>>(),
        is_root,
        images_are_there,
    )
}

fn judge_build_tools(missing: &[(&str, &str)], is_root: bool, images_are_there: bool) -> Finding {
    let name = "image building";
    let finding = if images_are_there {
        Finding::degraded
    } else {
        Finding::missing
    };
    if missing.is_empty() && is_root {
        return Finding::ok(name, "all programs there");
    }
    if missing.is_empty() {
        return finding(
            name,
            "all programs there, but not root".into(),
            "file owners are part of an image".into(),
            "run bellows image build as root".into(),
        );
    }
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    finding(
        name,
        format!("not installed: {}", names.join(", ")),
        "bellows image build calls them".to_owned(),
        format!(
            "apt-get install --no-install-recommends {}",
            packages.join(" ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[test]
    fn build_tools_are_required_only_while_images_are_missing() {
        let tools = [
            ("mke2fs", "e2fsprogs"),
            ("unshare", "util-linux"),
            ("setpriv", "util-linux"),
        ];
        let finding = judge_build_tools(&tools, true, false);
        assert_eq!(finding.verdict, Severity::Missing);
        assert_eq!(
            finding.fix.unwrap(),
            "apt-get install --no-install-recommends e2fsprogs util-linux"
        );
        assert_eq!(
            judge_build_tools(&tools, true, true).verdict,
            Severity::Degraded
        );
        assert_eq!(
            judge_build_tools(&[], false, false).verdict,
            Severity::Missing
        );
        assert_eq!(judge_build_tools(&[], true, false).verdict, Severity::Ok);
    }
}
