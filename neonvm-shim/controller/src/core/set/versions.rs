//! Numbers of the template's versions. A template that is kept has its number again.

use std::collections::BTreeSet;

use protocol::policy::{TemplateVersion, VmSet, VmSetStatus};

/// Versions kept beside those in use.
const KEPT: usize = 5;

/// Notes the template of the spec in the status: as the version that it is, or as the next one.
/// `used` are versions of members.
pub(super) fn observe(set: &VmSet, status: &mut VmSetStatus, used: &BTreeSet<u32>) {
    let template = &set.spec.template;
    let mut kept = status.versions.iter();
    let newest = match kept.find(|kept| kept.template == *template) {
        Some(kept) => kept.version,
        None => {
            let last = status.versions.iter().map(|kept| kept.version).max();
            let next = last.into_iter().chain(status.newest).max().unwrap_or(0) + 1;
            status.versions.push(TemplateVersion {
                version: next,
                template: template.clone(),
            });
            next
        }
    };
    status.newest = Some(newest);
    status.version.get_or_insert(newest);
    forget(set, status, used);
}

/// Drops the oldest versions beyond [`KEPT`] that nothing refers to.
fn forget(set: &VmSet, status: &mut VmSetStatus, used: &BTreeSet<u32>) {
    let upgrade = status.upgrade.as_ref().map(|upgrade| upgrade.to);
    let named = [
        status.newest,
        status.version,
        status.previous,
        upgrade,
        set.spec.version,
    ];
    let named: BTreeSet<u32> = named.into_iter().flatten().chain(used.clone()).collect();
    let mut spare = status.versions.len().saturating_sub(KEPT);
    status.versions.retain(|kept| {
        let goes = spare > 0 && !named.contains(&kept.version);
        spare -= usize::from(goes);
        !goes
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(image: u32) -> VmSet {
        let mut set = VmSet::default();
        set.spec.template.spec = json!({"guest": {"rootDisk": {"image": image}}});
        set
    }

    fn numbers(status: &VmSetStatus) -> Vec<u32> {
        status.versions.iter().map(|kept| kept.version).collect()
    }

    #[test]
    fn template_that_is_kept_has_its_number_again() {
        let mut status = VmSetStatus::default();
        for (image, newest) in [(1, 1), (1, 1), (2, 2), (1, 1), (3, 3)] {
            observe(&set(image), &mut status, &BTreeSet::new());
            assert_eq!(status.newest, Some(newest), "{image}");
            assert_eq!(status.version, Some(1), "a new template changes no member");
        }
        assert_eq!(numbers(&status), [1, 2, 3]);
    }

    #[test]
    fn versions_in_use_are_kept_and_no_number_is_used_twice() {
        let mut status = VmSetStatus::default();
        let used = BTreeSet::from([2]);
        for image in 1..=20 {
            observe(&set(image), &mut status, &used);
            assert_eq!(status.newest, Some(image));
        }
        assert_eq!(numbers(&status), [1, 2, 18, 19, 20]);
    }
}
