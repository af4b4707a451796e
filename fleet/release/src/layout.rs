//! Names in a repository. They have no slash, because clients differ in how they place the hash of
//! a target in a folder.

use reqwest::Url;

/// Platform of this build, as manifests name it.
pub const PLATFORM: &str = std::env::consts::ARCH;
/// Role that signs manifests and programs.
pub(crate) const RELEASES: &str = "releases";
/// Names that the role may sign.
pub(crate) const RELEASES_PATHS: [&str; 2] = ["release-*", "program-*"];
/// Folder of the metadata.
pub(crate) const METADATA: &str = "metadata";
/// Folder of the targets.
pub(crate) const TARGETS: &str = "targets";

/// Role that signs the two texts of a channel.
pub(crate) fn channel_role(channel: &str) -> String {
    format!("channel-{channel}")
}

/// Target with the version of a channel.
pub(crate) fn version_target(channel: &str) -> String {
    format!("channel-{channel}.version")
}

/// Target with the mark of a channel.
pub(crate) fn critical_target(channel: &str) -> String {
    format!("channel-{channel}.critical")
}

/// Target with the manifest of a release.
pub(crate) fn manifest_target(version: &str) -> String {
    format!("release-{version}.json")
}

/// Target with a program.
pub(crate) fn program_target(part: &str, version: &str, platform: &str) -> String {
    format!("program-{part}-{version}-{platform}")
}

/// Files with the two texts of a channel, for readers without signatures.
pub(crate) fn plain_texts(channel: &str) -> [String; 2] {
    [
        format!("v1/{channel}/version"),
        format!("v1/{channel}/critical"),
    ]
}

/// Folder below a base.
pub(crate) fn below(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(path.split('/'));
    }
    url
}
