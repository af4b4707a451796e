//! The metrics page of a node's agent.

/// Name of the gauge of the program, before its labels.
const BUILD: &str = "autoscaler_agent_build_info{";
/// Gauge of monitors that the agent is connected to.
const CONNECTED: &str = "autoscaling_agent_monitors_connected_current ";
/// Longest version that is read, bytes.
const VERSION_BYTES: usize = 64;

/// What is read of a page. Agents of before a gauge do not have it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct AgentPage {
    pub(super) version: Option<String>,
    pub(super) monitors_connected: Option<u32>,
}

impl AgentPage {
    pub(super) fn read(text: &str) -> Self {
        let build = text.lines().find_map(|line| line.strip_prefix(BUILD));
        let version = build.and_then(|labels| {
            let (_, value) = labels.split_once("version=\"")?;
            let (version, _) = value.split_once('"')?;
            (!version.is_empty() && version.len() <= VERSION_BYTES).then(|| version.to_owned())
        });
        let connected = text.lines().find_map(|line| line.strip_prefix(CONNECTED));
        Self {
            version,
            monitors_connected: connected.and_then(|value| value.trim().parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = "# TYPE autoscaler_agent_build_info gauge\n\
        autoscaler_agent_build_info{version=\"1.1.0\",sha256=\"ab\"} 1\n\
        autoscaling_agent_monitors_connected_current 3\n";

    /// Requirement: R23
    #[test]
    fn page_names_version_and_monitors_and_an_older_one_does_not() {
        let read = AgentPage::read(PAGE);
        assert_eq!(read.version.as_deref(), Some("1.1.0"));
        assert_eq!(read.monitors_connected, Some(3));
        assert_eq!(AgentPage::read("up 1\n"), AgentPage::default());
        let bad = PAGE.replace("1.1.0", "").replace(" 3", " many");
        assert_eq!(AgentPage::read(&bad), AgentPage::default());
    }

    proptest! {
        #[test]
        fn any_page_is_read_within_bounds(text in "(autoscaler_agent_build_info\\{version=\"[a-z0-9.]{0,80}\"?|\\PC{0,80}|\n){0,8}") {
            let read = AgentPage::read(&text);
            prop_assert!(read.version.is_none_or(|version| version.len() <= VERSION_BYTES));
        }
    }
}
