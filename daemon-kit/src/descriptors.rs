//! The limit of open file descriptors of this process (`RLIMIT_NOFILE`).
//!
//! A connection takes a descriptor. A process without free descriptors can neither accept, connect
//! nor open a file. So every server uses a fixed part of the limit ([`share`]) and the rest stays
//! free.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Highest limit to ask for. Some programs iterate over all descriptors below the limit, and
/// children inherit it.
const ENOUGH: u64 = 1 << 20;

/// Raises the soft limit to the hard limit. Call once, at the start of a program.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(ENOUGH, |hard| hard.min(ENOUGH));
    if limit.current.is_none_or(|soft| soft >= wanted) {
        return;
    }
    limit.current = Some(wanted);
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        let error = crate::chain(&error);
        tracing::warn!(error, wanted, "failed to raise the limit of open files");
    }
}

/// Number of connections that a server may have: `wanted`, but at most the `part`th part of the
/// limit.
#[must_use]
pub fn share(wanted: usize, part: u64) -> usize {
    part_of(getrlimit(Resource::Nofile).current, wanted, part)
}

fn part_of(limit: Option<u64>, wanted: usize, part: u64) -> usize {
    let bound = limit.map_or(u64::MAX, |limit| limit / part.max(1));
    usize::try_from(bound)
        .unwrap_or(usize::MAX)
        .clamp(1, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_uses_at_most_its_part_of_the_limit() {
        assert_eq!(part_of(Some(1024), 2048, 4), 256);
        assert_eq!(part_of(Some(1 << 20), 2048, 4), 2048);
        assert_eq!(part_of(None, 64, 16), 64);
        assert_eq!(
            part_of(Some(3), 64, 16),
            1,
            "a server without connections is none"
        );
    }

    #[test]
    fn raised_limit_is_the_hard_limit() {
        raise_limit();
        let limit = getrlimit(Resource::Nofile);
        let wanted = limit.maximum.map(|hard| hard.min(ENOUGH));
        assert!(
            limit.current >= wanted || limit.current.is_none(),
            "{limit:?}"
        );
    }
}
