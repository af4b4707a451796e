//! Users of VMs' processes: a range of user IDs that nothing else on this machine uses.
//!
//! Each instance writes its range to a directory of the machine. A claim counts while its
//! instance's state directory exists.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use neonvm_runner::node::UserRange;

use crate::fail::{Fail, Outcome};
use crate::places::StateDir;

/// Claims of all instances. The name of a file is the first user, its content the state directory.
const CLAIMS: &str = "/run/bellows/users";
/// Files with users and ranges that this machine has assigned, with the columns of the user and of
/// the count.
const FILES: [(&str, usize, Option<usize>); 3] = [
    ("/etc/passwd", 2, None),
    ("/etc/subuid", 1, Some(2)),
    ("/etc/subgid", 1, Some(2)),
];

/// Claims a range for the instance of a state directory.
///
/// # Errors
///
/// 64 if a user of it is assigned already, 69 if the claim cannot be written.
pub(crate) fn claim(state: &StateDir, range: UserRange) -> Outcome {
    let users = range.all();
    let taken = |by: String| {
        let (first, last) = (users.start(), users.end());
        Err(
            Fail::usage(format!("users {first} to {last} are taken{by}"))
                .rule("processes of VMs have users that nobody else has")
                .fix("choose another range: bellows up --vm-users UID"),
        )
    };
    for (file, first, count) in FILES {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if let Some(line) = overlapping(&text, &users, first, count) {
            return taken(format!(": {file} has {line:?}"));
        }
    }
    if let Some(other) = claimed_by_another(Path::new(CLAIMS), state.path(), &users) {
        return taken(format!(" by the instance of {}", other.display()));
    }
    write(Path::new(CLAIMS), state.path(), *users.start())
        .map_err(|error| Fail::missing(format!("{CLAIMS} cannot be written: {error}")))
}

/// The first line of a file in the form of `/etc/passwd` or `/etc/subuid` that has a user of the
/// range.
fn overlapping(
    text: &str,
    users: &RangeInclusive<u32>,
    first: usize,
    count: Option<usize>,
) -> Option<String> {
    let has = |line: &&str| {
        let column = |at: usize| line.split(':').nth(at)?.trim().parse::<u32>().ok();
        let Some(first) = column(first) else {
            return false;
        };
        let count = count.and_then(column).unwrap_or(1);
        let last = first.saturating_add(count.saturating_sub(1));
        first <= *users.end() && last >= *users.start()
    };
    text.lines().find(has).map(str::to_owned)
}

/// Blocks whose range has a user of another instance. Without root nobody claims users.
pub(crate) fn blocks_of_others(state: &StateDir) -> Vec<u8> {
    blocks_claimed_by_others(Path::new(CLAIMS), state.path())
}

fn blocks_claimed_by_others(claims: &Path, state: &Path) -> Vec<u8> {
    let claims = claims_of_others(claims, state);
    let is_claimed = |block: &u8| {
        let users = UserRange::of_block(*block).all();
        claims.iter().any(|claim| claim.overlaps(&users))
    };
    super::BLOCKS.filter(is_claimed).collect()
}

/// State directory of another instance that has a user of the range.
fn claimed_by_another(claims: &Path, state: &Path, users: &RangeInclusive<u32>) -> Option<PathBuf> {
    let mut claims = claims_of_others(claims, state).into_iter();
    claims.find_map(|claim| claim.overlaps(users).then_some(claim.state))
}

/// A range that an instance has claimed.
struct Claim {
    first: u32,
    state: PathBuf,
}

impl Claim {
    fn overlaps(&self, users: &RangeInclusive<u32>) -> bool {
        let length = users.end() - users.start();
        self.first <= *users.end() && self.first.saturating_add(length) >= *users.start()
    }
}

/// Claims that count, without those of one state directory.
fn claims_of_others(claims: &Path, state: &Path) -> Vec<Claim> {
    let entries = std::fs::read_dir(claims).into_iter().flatten().flatten();
    let read = entries.filter_map(|entry| {
        let first = entry.file_name().to_str()?.parse().ok()?;
        let of = PathBuf::from(std::fs::read_to_string(entry.path()).ok()?);
        let counts = of != state && of.join("instance.json").exists();
        counts.then_some(Claim { first, state: of })
    });
    read.collect()
}

fn write(claims: &Path, state: &Path, first: u32) -> std::io::Result<()> {
    std::fs::create_dir_all(claims)?;
    std::fs::write(
        claims.join(first.to_string()),
        state.as_os_str().as_encoded_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assigned_user_or_range_is_found() {
        let users = 100_000..=165_535;
        let passwd = "root:x:0:0::/root:/bin/sh\nme:x:165535:100::/:/bin/sh\n";
        let found = overlapping(passwd, &users, 2, None);
        assert_eq!(found.as_deref(), Some("me:x:165535:100::/:/bin/sh"));
        assert_eq!(
            overlapping("me:x:165536:100::/:/x\n", &users, 2, None),
            None
        );
        let found = overlapping("me:99999:2\n", &users, 1, Some(2));
        assert_eq!(found.as_deref(), Some("me:99999:2"));
        assert_eq!(overlapping("me:34464:65536\n", &users, 1, Some(2)), None);
        assert_eq!(overlapping("# comment\n\n", &users, 2, None), None);
    }

    #[test]
    fn range_of_another_instance_is_refused_while_its_directory_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (claims, other) = (dir.path().join("claims"), dir.path().join("other"));
        let mine = dir.path().join("mine");
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("instance.json"), "{}").unwrap();
        write(&claims, &other, 1000).unwrap();
        let users = 2000..=2000 + 0xffff;
        assert_eq!(
            claimed_by_another(&claims, &mine, &users),
            Some(other.clone())
        );
        assert_eq!(claimed_by_another(&claims, &other, &users), None);
        let beyond = 1000 + 0x1_0000..=1000 + 0x1_ffff;
        assert_eq!(claimed_by_another(&claims, &mine, &beyond), None);
        std::fs::remove_dir_all(&other).unwrap();
        assert_eq!(claimed_by_another(&claims, &mine, &users), None);
    }

    #[test]
    fn block_of_an_instance_that_is_down_is_not_given_to_another() {
        let dir = tempfile::tempdir().unwrap();
        let (claims, other) = (dir.path().join("claims"), dir.path().join("other"));
        let mine = dir.path().join("mine");
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("instance.json"), "{}").unwrap();
        assert_eq!(blocks_claimed_by_others(&claims, &mine), [0; 0]);
        let users = UserRange::of_block(7).all();
        write(&claims, &other, *users.start()).unwrap();
        assert_eq!(blocks_claimed_by_others(&claims, &mine), [7]);
        assert_eq!(blocks_claimed_by_others(&claims, &other), [0; 0]);
        // A range of one's own choice may touch two.
        write(&claims, &other, *users.end()).unwrap();
        assert_eq!(blocks_claimed_by_others(&claims, &mine), [7, 8]);
    }
}
