//! State of the walls between guests and this machine, from the records of node driver and runners.

use std::path::Path;

use super::host_wall::HostWall;
use crate::core::paths::Paths;
use crate::core::walls::Wall;
use crate::shell::record::{Record, read_json};

/// State of one wall over all guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Name of the wall for people.
    pub name: &'static str,
    /// Number of guests that have the wall.
    pub guests: usize,
    /// Why it does not stand: the guest, if it is one guest's, and the reason.
    pub missing: Vec<(Option<String>, String)>,
}

/// State of every wall. Without guests the walls of runners are omitted.
#[must_use]
pub fn standing(state_dir: &Path) -> Vec<Standing> {
    let records = records(state_dir);
    let mut found = Vec::new();
    if let Some(host) = HostWall::of(state_dir) {
        found.push(Standing {
            name: "kernel rules for guests' users",
            guests: if host.missing.is_none() {
                records.len()
            } else {
                0
            },
            missing: host.missing.into_iter().map(|why| (None, why)).collect(),
        });
    }
    if !records.is_empty() {
        found.extend(Wall::ALL.map(|wall| of_guests(wall, &records)));
    }
    found
}

fn of_guests(wall: Wall, records: &[(String, Record)]) -> Standing {
    let mut standing = Standing {
        name: wall.label(),
        guests: 0,
        missing: Vec::new(),
    };
    for (guest, record) in records {
        match record.walls.iter().find(|state| state.wall == wall) {
            Some(state) if state.missing.is_none() => standing.guests += 1,
            Some(state) => {
                let why = state.missing.clone().unwrap_or_default();
                standing.missing.push((Some(guest.clone()), why));
            }
            None => {
                let why = "it was started before there was this wall: restart it".to_owned();
                standing.missing.push((Some(guest.clone()), why));
            }
        }
    }
    standing
}

/// Records of the running guests, by the names of their directories.
fn records(state_dir: &Path) -> Vec<(String, Record)> {
    let entries = std::fs::read_dir(state_dir.join("vms"));
    let mut records: Vec<(String, Record)> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let record: Record = read_json(&Paths::new(entry.path()).record()).ok()??;
            let runs = record.qemu.is_some_and(|qemu| qemu.is_alive());
            Some((entry.file_name().into_string().ok()?, record)).filter(|_| runs)
        })
        .collect();
    records.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    records
}
