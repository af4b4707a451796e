//! What a reading of a channel changed, for the journal.

use protocol::fleet::{CONDITION_ADOPTED, CONDITION_VERIFIED, ChannelStatus};

use crate::changes::{Change, ChangeKind, change};

/// The change of a channel's status. Times alone are none.
pub(super) fn of_channel(
    on: String,
    before: &ChannelStatus,
    after: &ChannelStatus,
) -> Option<Change> {
    let said = |status: &ChannelStatus| {
        let known = [CONDITION_VERIFIED, CONDITION_ADOPTED];
        let conditions = known.map(|name| {
            let one = status.condition(name)?;
            Some((one.status.clone(), one.reason.clone()))
        });
        (status.version.clone(), status.critical, conditions)
    };
    if said(before) == said(after) {
        return None;
    }
    let conditions = after.conditions.iter().map(|one| {
        let text = format!("{}={} {}", one.r#type, one.status, one.reason);
        format!("{text} {}", one.message).trim_end().to_owned()
    });
    let conditions: Vec<String> = conditions.collect();
    let urgent = if after.critical { ", critical" } else { "" };
    Some(change(
        ChangeKind::Channel,
        on,
        format!("{}{urgent}", after.version),
        conditions.join("; "),
    ))
}

#[cfg(test)]
mod tests {
    use protocol::fleet::{ChannelProblem, ChannelReading};
    use protocol::time::WallTime;
    use semver::Version;

    use super::*;

    fn read(status: &ChannelStatus, second: i64, version: Option<&str>) -> ChannelStatus {
        let mut status = status.clone();
        let reading = match version {
            Some(version) => Ok(ChannelReading {
                version: Version::parse(version).expect("a version"),
                is_critical: false,
                fresh_until: None,
            }),
            None => Err(ChannelProblem {
                reason: "Unavailable".to_owned(),
                message: "the server answered 500".to_owned(),
            }),
        };
        status.take(WallTime(second * 1_000_000), &reading);
        status
    }

    /// Requirement: B49
    #[test]
    fn reading_is_a_line_if_it_says_something_new() {
        let of = |before: &ChannelStatus, after: &ChannelStatus| {
            of_channel("default/stable".to_owned(), before, after)
        };
        let none = ChannelStatus::default();
        let first = read(&none, 1, Some("1.0.0"));
        let line = of(&none, &first).expect("a version");
        assert_eq!(
            (line.to.as_str(), line.why.as_str()),
            ("1.0.0", "Verified=True Verified")
        );
        assert_eq!(of(&first, &read(&first, 2, Some("1.0.0"))), None);
        let away = read(&first, 3, None);
        let line = of(&first, &away).expect("a failure");
        assert!(line.why.contains("the server answered 500"), "{}", line.why);
        assert_eq!(of(&away, &read(&away, 4, None)), None);
        assert!(of(&away, &read(&away, 5, Some("1.1.0"))).is_some());
    }
}
