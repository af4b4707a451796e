//! Programs and files that the host needs to build images.

use crate::search_path;

/// A program or file that a build needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Name of the program, or absolute path of the file.
    pub name: &'static str,
    /// Purpose in a build.
    pub why: &'static str,
    /// Debian package that contains it.
    pub package: &'static str,
    /// Whether the host has it.
    pub present: bool,
}

/// Debian's signing keys. Without them a downloaded package index cannot be verified.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

const NEEDED: &[(&str, &str, &str)] = &[
    (
        "apt-get",
        "to choose, download and check Debian packages",
        "apt",
    ),
    (
        KEYRING,
        "to check the signature of the package index",
        "debian-archive-keyring",
    ),
    ("dpkg-deb", "to open packages", "dpkg"),
    ("tar", "to unpack packages and keep the base layer", "tar"),
    (
        "bwrap",
        "to run programs of an image apart from this machine",
        "bubblewrap",
    ),
    (
        "bash",
        "to start those programs without files of the caller",
        "bash",
    ),
    ("mount", "to show them the image and nothing else", "mount"),
    (
        "unshare",
        "to give those programs user numbers of their own",
        "util-linux",
    ),
    (
        "setpriv",
        "to end helper programs with the build",
        "util-linux",
    ),
    (
        "setarch",
        "to make their output the same each time",
        "util-linux",
    ),
    ("mke2fs", "to make the root file system", "e2fsprogs"),
    ("depmod", "to order kernel modules", "kmod"),
    ("modprobe", "to find the modules a module needs", "kmod"),
    ("xz", "to open compressed kernel modules", "xz-utils"),
];

/// Everything that a build needs from the host, present or not.
#[must_use]
pub fn host_requirements() -> Vec<Requirement> {
    NEEDED
        .iter()
        .map(|&(name, why, package)| Requirement {
            name,
            why,
            package,
            present: search_path::find(name).is_some(),
        })
        .collect()
}

/// Debian package of a program. The program's own name if it is not in the list.
pub(crate) fn package_of(program: &str) -> &str {
    NEEDED
        .iter()
        .find(|(name, ..)| *name == program)
        .map_or(program, |(_, _, package)| package)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: N46
    #[test]
    fn every_requirement_has_a_purpose_and_a_package() {
        let all = host_requirements();
        assert!(all.iter().any(|r| r.name == "apt-get"));
        for r in all {
            assert!(
                r.why.starts_with("to ") && !r.package.contains(' '),
                "{r:?}"
            );
        }
        assert_eq!(package_of("mke2fs"), "e2fsprogs");
        assert_eq!(package_of("unheard-of"), "unheard-of");
    }
}
