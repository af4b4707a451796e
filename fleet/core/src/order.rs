//! May this release run beside what runs already? Ranges of links, order of parts, and steps from
//! version to version.
//!
//! Skew is decided by ranges of the links, never by comparing version numbers.

use std::collections::BTreeMap;

use protocol::fleet::{LinkRange, ReleaseManifest};
use semver::Version;

/// A link between two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// Agent and monitor.
    Monitor,
    /// Agent and scheduler.
    Permit,
    /// Controller and runner.
    Runner,
    /// Runner and guest daemon.
    Guestd,
    /// Fleet and the parts of a guest.
    Parts,
}

impl Link {
    /// A link by its name in a manifest. Links of later versions are unknown.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "monitor" => Self::Monitor,
            "permit" => Self::Permit,
            "runner" => Self::Runner,
            "guestd" => Self::Guestd,
            "parts" => Self::Parts,
            _ => return None,
        })
    }
}

/// Versions of a link that a release speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Lowest version of the link that the program speaks.
    pub min: u32,
    /// Highest version of the link that the program speaks.
    pub max: u32,
}

impl Range {
    /// Whether both speak a common version.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

/// What a release says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Release that it was built from.
    pub version: Version,
    /// Links that it speaks.
    pub links: BTreeMap<Link, Range>,
    /// Whether it waits for no other part.
    pub is_independent: bool,
    /// Version that must have run before it.
    pub at_least: Option<Version>,
}

impl Release {
    /// What a manifest says. Links of later versions are unknown, and are left out.
    #[must_use]
    pub fn of_manifest(version: &Version, manifest: &ReleaseManifest) -> Self {
        let at_least = manifest.at_least.as_ref();
        Self {
            version: version.clone(),
            links: links_of(&manifest.links),
            is_independent: manifest.independent,
            at_least: at_least.and_then(|version| Version::parse(version).ok()),
        }
    }

    /// This build, with the links that it speaks.
    #[must_use]
    pub fn of_links(version: Version, links: &BTreeMap<String, LinkRange>) -> Self {
        Self {
            version,
            links: links_of(links),
            is_independent: false,
            at_least: None,
        }
    }
}

fn links_of(links: &BTreeMap<String, LinkRange>) -> BTreeMap<Link, Range> {
    let known = links.iter().filter_map(|(name, &LinkRange { min, max })| {
        Link::named(name).map(|link| (link, Range { min, max }))
    });
    known.collect()
}

/// Tier of a part. An earlier one is brought forward first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Scheduler, controller and fleet.
    ControlPlane,
    /// The agent of a node.
    Agent,
    /// Programs of a guest.
    Guest,
}

/// Why a release may not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// A peer speaks no common version of a link.
    Skew(String),
    /// A part before it is older.
    Order(String),
    /// Its major version is lower.
    LowerMajor(String),
    /// Another release must run before it.
    SteppingStone(String),
}

/// Direction of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To a newer version.
    Forward,
    /// To the same version.
    Same,
    /// To an older version of the same major.
    Down,
}

/// Whether a release overlaps with every peer on every link that both speak. Peers are those that
/// run now, and those that a deployment in progress brings.
///
/// # Errors
/// The first peer without a common version.
pub fn skew(release: &Release, peers: &[(&str, &Release)]) -> Result<(), Refusal> {
    for (name, peer) in peers {
        for (link, range) in &release.links {
            let Some(other) = peer
                .links
                .get(link)
                .filter(|other| !range.overlaps(**other))
            else {
                continue;
            };
            return Err(Refusal::Skew(format!(
                "{} speaks {link:?} {} to {}, {name} {} speaks {} to {}: bring {name} forward first",
                release.version, range.min, range.max, peer.version, other.min, other.max
            )));
        }
    }
    Ok(())
}

/// Whether the parts of the tiers before run this version or a later one.
///
/// # Errors
/// The first part that is older.
pub fn order(
    tier: Tier,
    release: &Release,
    running: &[(&str, Tier, &Version)],
) -> Result<(), Refusal> {
    if release.is_independent {
        return Ok(());
    }
    let mut before = running.iter().filter(|(_, of_part, _)| *of_part < tier);
    let older = before.find(|(_, _, version)| **version < release.version);
    older.map_or(Ok(()), |(name, _, version)| {
        let wanted = &release.version;
        Err(Refusal::Order(format!(
            "{name} runs {version}: bring it to {wanted} first"
        )))
    })
}

/// Whether a release may follow a version, and in which direction that is.
///
/// # Errors
/// A lower major version, or a release that must run in between.
pub fn step(from: &Version, to: &Release) -> Result<Direction, Refusal> {
    let wanted = &to.version;
    if wanted.major < from.major {
        return Err(Refusal::LowerMajor(format!(
            "{wanted} has a lower major version than {from}, which no part goes back to"
        )));
    }
    if let Some(stone) = to
        .at_least
        .as_ref()
        .filter(|stone| from < *stone && from < wanted)
    {
        return Err(Refusal::SteppingStone(format!(
            "{wanted} follows {stone} or a later one, not {from}: bring {stone} first"
        )));
    }
    Ok(match wanted.cmp(from) {
        std::cmp::Ordering::Greater => Direction::Forward,
        std::cmp::Ordering::Equal => Direction::Same,
        std::cmp::Ordering::Less => Direction::Down,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::parse(text).expect(text)
    }

    fn release(text: &str, links: &[(Link, u32, u32)]) -> Release {
        let links = links.iter().map(|(link, min, max)| {
            let range = Range {
                min: *min,
                max: *max,
            };
            (*link, range)
        });
        Release {
            version: version(text),
            links: links.collect(),
            is_independent: false,
            at_least: None,
        }
    }

    /// Every pair of four releases. A later release speaks an older link as long as its range says.
    ///
    /// Requirement: R13
    #[test]
    fn releases_run_together_as_far_as_their_links_overlap() {
        let releases = [
            release("1.0.0", &[(Link::Monitor, 1, 1), (Link::Guestd, 1, 1)]),
            release("1.1.0", &[(Link::Monitor, 1, 2), (Link::Guestd, 1, 1)]),
            release("1.2.0", &[(Link::Monitor, 2, 3), (Link::Guestd, 1, 2)]),
            release("1.3.0", &[(Link::Monitor, 3, 3), (Link::Permit, 7, 7)]),
        ];
        let expected = ["yynn", "yyyn", "nyyy", "nnyy"];
        for (one, row) in releases.iter().zip(&expected) {
            for (other, letter) in releases.iter().zip(row.chars()) {
                let result = skew(one, &[("peer", other)]);
                assert_eq!(result.is_ok(), letter == 'y', "{result:?}");
                assert_eq!(result.is_ok(), skew(other, &[("peer", one)]).is_ok());
            }
        }
    }

    /// Requirement: R13
    #[test]
    fn lower_version_number_alone_is_no_skew() {
        let new = release("2.0.0", &[(Link::Monitor, 1, 9)]);
        let old = release("1.0.0", &[(Link::Monitor, 9, 9)]);
        assert_eq!(skew(&old, &[("agent", &new)]), Ok(()));
    }

    /// Requirement: R11
    #[test]
    fn control_plane_goes_before_agent_before_guest() {
        let (old, new) = (version("1.0.0"), version("1.1.0"));
        let wanted = release("1.1.0", &[]);
        let rows = [
            (Tier::ControlPlane, &old, &old, true),
            (Tier::Agent, &old, &old, false),
            (Tier::Agent, &new, &old, true),
            (Tier::Guest, &old, &new, false),
            (Tier::Guest, &new, &old, false),
            (Tier::Guest, &new, &new, true),
        ];
        for (tier, plane, agent, expected) in rows {
            let running = [
                ("scheduler", Tier::ControlPlane, plane),
                ("agent", Tier::Agent, agent),
            ];
            let result = order(tier, &wanted, &running);
            assert_eq!(result.is_ok(), expected, "{tier:?} {plane} {agent}");
            let independent = Release {
                is_independent: true,
                ..wanted.clone()
            };
            assert_eq!(order(tier, &independent, &running), Ok(()));
        }
    }

    /// Requirement: R43
    #[test]
    fn lower_major_is_refused_and_a_lower_minor_is_said() {
        let rows = [
            ("1.2.0", "1.3.0", Ok(Direction::Forward)),
            ("1.2.0", "2.0.0", Ok(Direction::Forward)),
            ("1.2.0", "1.2.0", Ok(Direction::Same)),
            ("1.2.0", "1.1.9", Ok(Direction::Down)),
            ("1.2.0-rc.1", "1.2.0", Ok(Direction::Forward)),
            ("2.0.0", "1.9.0", Err(())),
            ("2.0.0-rc.1", "1.9.0", Err(())),
        ];
        for (from, to, expected) in rows {
            let result = step(&version(from), &release(to, &[]));
            let is_major = matches!(result, Err(Refusal::LowerMajor(_)));
            assert_eq!(is_major, expected.is_err(), "{from} {to}");
            assert_eq!(result.map_err(|_| ()), expected, "{from} {to}");
        }
    }

    /// Requirement: R13
    #[test]
    fn stepping_stone_is_not_skipped() {
        let wanted = Release {
            at_least: Some(version("1.5.0")),
            ..release("1.8.0", &[])
        };
        assert!(matches!(
            step(&version("1.4.9"), &wanted),
            Err(Refusal::SteppingStone(_))
        ));
        assert_eq!(step(&version("1.5.0"), &wanted), Ok(Direction::Forward));
        assert_eq!(step(&version("1.9.0"), &wanted), Ok(Direction::Down));
    }
}
