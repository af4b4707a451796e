//! Figures of an environment and of a deployment, counted from the guests.

use std::collections::BTreeMap;

use protocol::fleet::{Counts, CurrentVersion, Group};

use crate::groups::group_of;
use crate::permit::Fleet;
use crate::proof::health;
use crate::world::{Guest, Observed};

/// Guests by standing, with the groups of their environment.
#[must_use]
pub fn counts<'a>(guests: impl Iterator<Item = &'a Guest>, groups: &[Group]) -> Counts {
    let mut counts = Counts::default();
    for guest in guests.filter(|guest| !guest.has_left) {
        counts.matching += 1;
        let of_standing = if matches!(guest.observed, Observed::Unmanaged(_)) {
            &mut counts.unmanaged
        } else if !guest.is_enrolled {
            &mut counts.opted_out
        } else if group_of(groups, &guest.labels).is_none() {
            &mut counts.unassigned
        } else if guest.is_in_flight() {
            &mut counts.launching
        } else {
            match health(guest) {
                Some(true) => &mut counts.active,
                Some(false) => &mut counts.unhealthy,
                None => &mut counts.unknown,
            }
        };
        *of_standing += 1;
    }
    counts
}

/// What the permit rests on. Guests in no group never change, so they do not count. Those that left
/// the environment do.
#[must_use]
pub fn fleet<'a>(guests: impl Iterator<Item = &'a Guest>, groups: &[Group]) -> Fleet {
    let mut fleet = Fleet::default();
    let is_assigned = |guest: &&Guest| guest.has_left || group_of(groups, &guest.labels).is_some();
    for guest in guests
        .filter(|guest| guest.takes_part())
        .filter(is_assigned)
    {
        fleet.matches += 1;
        if guest.is_in_flight() {
            fleet.in_flight += 1;
        } else if health(guest) == Some(true) {
            fleet.settled_healthy += 1;
        }
    }
    fleet
}

/// Versions that run, with the number of their guests.
#[must_use]
pub fn current<'a>(guests: impl Iterator<Item = &'a Guest>) -> Vec<CurrentVersion> {
    let mut by_program: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for guest in guests.filter(|guest| !guest.has_left) {
        if let Observed::Seen(part) = &guest.observed {
            let program = (part.state.version.as_str(), part.state.sha256.as_str());
            *by_program.entry(program).or_default() += 1;
        }
    }
    by_program
        .into_iter()
        .map(|((version, sha256), count)| CurrentVersion {
            version: version.to_owned(),
            sha256: sha256.to_owned(),
            count,
        })
        .collect()
}
