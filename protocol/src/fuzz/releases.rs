//! What file servers hand out about releases, and what agents say about their restart.

use crate::fleet::{
    AgentSchedule, CHANNEL_TEXT_BYTES, ReleaseManifest, channel_critical, channel_version,
    check_version,
};

/// Texts of a channel and manifests. An accepted text is short, has one line, and is accepted again
/// as it is written. So is a schedule of an agent.
pub fn release_texts(data: &[u8]) {
    if let Ok(version) = channel_version(data) {
        assert!(data.len() <= CHANNEL_TEXT_BYTES);
        let line = data.strip_suffix(b"\n").unwrap_or(data);
        assert_eq!(version.to_string().as_bytes(), line);
    }
    if channel_critical(data) {
        assert!(data.starts_with(b"yes") && data.len() <= 4);
    }
    if let Ok(manifest) = ReleaseManifest::parse(data) {
        assert!(check_version(&manifest.version).is_ok());
        let again = serde_json::to_vec(&manifest).expect("a manifest is JSON");
        assert_eq!(ReleaseManifest::parse(&again), Ok(manifest));
    }
    let schedule = std::str::from_utf8(data).map(AgentSchedule::parse);
    if let Ok(Ok(schedule)) = schedule {
        let again = serde_json::to_string(&schedule).expect("a schedule is JSON");
        assert_eq!(AgentSchedule::parse(&again), Ok(schedule));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_seed_of_the_releases_holds() {
        test_seeds::hold(&[("release_texts", release_texts)]);
    }

    fn any_manifest() -> impl Strategy<Value = String> {
        let version = "(1\\.2\\.3|v1\\.2\\.3|1\\.2|0\\.0\\.1-rc\\.1)";
        let sha256 = "([0-9a-f]{64}|[0-9a-f]{0,4})";
        let program = format!("\\{{\"sha256\":\"{sha256}\",\"size\":-?[0-9]{{1,9}}\\}}");
        let text = format!(
            "\\{{\"version\":\"{version}\",\"parts\":\\{{\"(monitor|x/y)\":\\{{\"x86_64\":{program}\\}}\\}},\"links\":\\{{\"parts\":\\{{\"min\":[0-3],\"max\":[0-3]\\}}\\}}(,\"atLeast\":\"{version}\")?\\}}"
        );
        proptest::string::string_regex(&text).expect("a pattern")
    }

    proptest! {
        /// Requirement: R01
        #[test]
        fn versions_and_manifests_hold(
            manifest in any_manifest(),
            version in "[v=]?[0-9]{1,3}\\.[0-9]{1,3}(\\.[0-9]{1,3})?(-[a-z0-9.]{0,60})?(\\+[a-z])?\n?\n?",
            schedule in "\\{\"version\":[12],\"restartOk\":(true|false|1)(,\"reason\":\"(\\PC|\\\\n){0,300}\")?\\}",
            bytes in prop::collection::vec(any::<u8>(), 0..70),
        ) {
            release_texts(schedule.as_bytes());
            release_texts(manifest.as_bytes());
            release_texts(version.as_bytes());
            release_texts(&bytes);
        }
    }
}
