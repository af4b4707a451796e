//! Release of the programs.

/// Release that every program of one build names: a semantic version without a commit.
///
/// A build sets it by the variable `BELLOWS_RELEASE`. Otherwise it is the workspace's version.
pub const RELEASE: &str = match option_env!("BELLOWS_RELEASE") {
    Some(release) => release,
    None => env!("CARGO_PKG_VERSION"),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_has_three_numbers_and_no_build_part() {
        let (core, _pre_release) = RELEASE.split_once('-').unwrap_or((RELEASE, ""));
        let numbers: Vec<_> = core.split('.').map(str::parse::<u32>).collect();
        assert_eq!(numbers.len(), 3, "{RELEASE}");
        assert!(numbers.iter().all(Result::is_ok), "{RELEASE}");
        assert!(!RELEASE.contains('+'), "{RELEASE}");
    }
}
