//! What a publisher may do, and what is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use fleet_release::{Audience, Changed, PublishError, Publisher, read_log};
use protocol::fleet::{LinkRange, ReleaseImage};

use crate::shop::Shop;

#[track_caller]
fn is_refused<T: std::fmt::Debug>(result: Result<T, PublishError>, hint: &str) {
    match result {
        Err(PublishError::Refused { what, rule }) => {
            let text = format!("{what}: {rule}");
            assert!(text.contains(hint), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

/// Requirement: R28
#[tokio::test]
async fn channel_names_only_what_the_repository_has() {
    let shop = Shop::open().await;
    is_refused(shop.promote("1.2.0").await, "no such release");
    for bad in ["1.2", "v1.0.0", "1.0.0+x", "1.0.0\n", ""] {
        is_refused(shop.promote(bad).await, "its version");
    }
    is_refused(
        shop.publisher.promote("edge", "1.0.0", false).await,
        "no such channel",
    );
    assert_eq!(shop.version().await.as_deref(), Ok("1.0.0"), "as before");
    shop.release("1.2.0").await.unwrap();
    assert_eq!(shop.promote("1.2.0").await.unwrap(), Changed::Yes);
    assert_eq!(shop.version().await.as_deref(), Ok("1.2.0"));
}

/// Requirement: R28
#[tokio::test]
async fn release_that_was_served_is_never_withdrawn() {
    let shop = Shop::open().await;
    shop.promote("1.1.0").await.unwrap();
    for served in ["1.0.0", "1.1.0"] {
        is_refused(
            shop.publisher.withdraw(served).await,
            "channel stable served it",
        );
    }
    shop.release("1.1.0-rc.1").await.unwrap();
    shop.publisher.withdraw("1.1.0-rc.1").await.unwrap();
    is_refused(
        shop.publisher.withdraw("1.1.0-rc.1").await,
        "no such release",
    );
    let versions = shop.repository().await.unwrap().versions().unwrap();
    let versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
    assert_eq!(versions, ["1.1.0", "1.0.0"]);
    assert_eq!(
        shop.program().await,
        Ok(crate::shop::program("1.1.0").into_bytes())
    );
}

/// A channel of one's own is ahead of the others, and who promotes there has no other channel.
///
/// Requirement: R44
#[tokio::test]
async fn staging_channel_has_its_own_version_and_key() {
    let shop = Shop::open().await;
    for bad in ["stable", "Staging", "../x", ""] {
        assert!(shop.publisher.add_channel(bad).await.is_err(), "{bad:?}");
    }
    shop.publisher.add_channel("staging").await.unwrap();
    shop.release("1.2.0").await.unwrap();
    // Keys of a job that promotes in this channel alone.
    let keys = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(shop.keys()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if ["channel-staging", "snapshot", "timestamp"].contains(&name.as_str()) {
            fs::copy(&path, keys.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let job = Publisher::new(&shop.folder(), keys.path());
    let promoted = job.promote("staging", "1.2.0", false).await;
    assert_eq!(promoted.unwrap(), Changed::Yes);
    let refused = job.promote("stable", "1.2.0", false).await;
    assert!(
        matches!(refused, Err(PublishError::NoKey(_))),
        "{refused:?}"
    );
    let repository = shop.repository().await.unwrap();
    let staging = repository.channel("staging").await.unwrap();
    assert_eq!(staging.version.to_string(), "1.2.0");
    assert_eq!(shop.version().await.as_deref(), Ok("1.0.0"), "stable stays");
}

/// Requirement: R43
#[tokio::test]
async fn lower_major_is_refused_also_if_it_is_urgent() {
    let shop = Shop::open().await;
    for version in ["0.9.0", "2.0.0-rc.1", "2.0.0", "2.1.0"] {
        shop.release(version).await.unwrap();
    }
    for (version, is_critical, is_allowed) in [
        ("0.9.0", false, false),
        ("0.9.0", true, false),
        ("1.1.0", false, true),
        // Lower, in the same major version.
        ("1.0.0", false, true),
        ("2.1.0", false, true),
        ("2.0.0", true, true),
        ("1.1.0", false, false),
        ("1.1.0", true, false),
        ("2.0.0-rc.1", false, true),
    ] {
        let before = shop.version().await;
        let promoted = shop.publisher.promote("stable", version, is_critical).await;
        if is_allowed {
            assert_eq!(promoted.unwrap(), Changed::Yes, "{version}");
            assert_eq!(shop.version().await.as_deref(), Ok(version));
        } else {
            is_refused(promoted, "lower");
            assert_eq!(shop.version().await, before);
        }
    }
}

/// Requirement: R40
#[tokio::test]
async fn promotion_twice_changes_once_and_is_logged_twice() {
    let shop = Shop::open().await;
    assert_eq!(shop.promote("1.1.0").await.unwrap(), Changed::Yes);
    let timestamp = fs::read(shop.metadata("timestamp.json")).unwrap();
    assert_eq!(shop.promote("1.1.0").await.unwrap(), Changed::No);
    assert_eq!(
        fs::read(shop.metadata("timestamp.json")).unwrap(),
        timestamp
    );
    let log = read_log(&shop.folder()).unwrap();
    let of_version = log.iter().filter(|line| line.version == "1.1.0");
    let lines: Vec<_> = of_version
        .map(|line| (line.action.as_str(), line.channel.as_str(), line.changed))
        .collect();
    let expected = [
        ("release", "", true),
        ("promote", "stable", true),
        ("promote", "stable", false),
    ];
    assert_eq!(lines, expected);
    let path = shop.folder().join("publish.log");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("1.1.0", "1.1.1")).unwrap();
    assert!(read_log(&shop.folder()).is_err(), "an edited line is found");
    let cut: Vec<&str> = text.lines().skip(1).collect();
    fs::write(&path, cut.join("\n")).unwrap();
    assert!(read_log(&shop.folder()).is_err(), "a missing line is found");
}

#[tokio::test]
async fn release_never_changes() {
    let shop = Shop::open().await;
    assert_eq!(shop.release("1.0.0").await.unwrap(), Changed::No);
    let mut other = shop.draft("1.0.0");
    other.notes = "text".to_owned();
    is_refused(shop.publisher.release(&other).await, "never changes");
}

#[tokio::test]
async fn bad_releases_are_refused_with_the_rule() {
    let shop = Shop::open().await;
    let big = shop.folder().join("big");
    fs::File::create(&big)
        .unwrap()
        .set_len((32 << 20) + 1)
        .unwrap();
    let empty = shop.folder().join("empty");
    fs::write(&empty, "").unwrap();
    let mut rows = Vec::new();
    for (version, hint) in [
        ("1.2", "version"),
        ("v1.2.3", "version"),
        ("../1", "version"),
    ] {
        let mut draft = shop.draft("1.2.0");
        draft.version = version.to_owned();
        rows.push((draft, hint));
    }
    for (file, hint) in [(big, "32 MiB"), (empty, "size")] {
        let mut draft = shop.draft("1.2.0");
        draft.programs[0].file = file;
        rows.push((draft, hint));
    }
    let mut without = shop.draft("1.2.0");
    without.programs.clear();
    rows.push((without, "must have a program"));
    let mut twice = shop.draft("1.2.0");
    twice.programs.push(twice.programs[0].clone());
    rows.push((twice, "twice"));
    let mut platform = shop.draft("1.2.0");
    platform.programs[0].platform = "../x".to_owned();
    rows.push((platform, "names"));
    let mut links = shop.draft("1.2.0");
    links
        .links
        .insert("parts".to_owned(), LinkRange { min: 2, max: 1 });
    rows.push((links, "links.parts.min"));
    let mut least = shop.draft("1.2.0");
    least.at_least = Some("1.2.0".to_owned());
    rows.push((least, "atLeast"));
    for (count, bytes, hint) in [(1, (16 << 10) + 1, "bundle"), (5, 16 << 10, "manifest")] {
        let mut signed = shop.draft("1.2.0");
        let image = ReleaseImage {
            digest: format!("sha256:{}", "ab".repeat(32)),
            bundle: "x".repeat(bytes),
        };
        let named = (0..count).map(|number| (format!("part-{number}"), image.clone()));
        signed.images = named.collect();
        rows.push((signed, hint));
    }
    for (draft, hint) in rows {
        is_refused(shop.publisher.release(&draft).await, hint);
    }
    let versions = shop.repository().await.unwrap().versions().unwrap();
    assert_eq!(versions.len(), 2, "nothing was added");
}

#[tokio::test]
async fn channel_name_is_safe_and_free() {
    let shop = Shop::open().await;
    for bad in ["", "A", "a/b", "..", "a*"] {
        is_refused(shop.publisher.add_channel(bad).await, "its name");
    }
    is_refused(shop.publisher.add_channel("stable").await, "already");
}

#[tokio::test]
async fn repository_and_keys_are_never_overwritten() {
    let shop = Shop::open().await;
    is_refused(shop.publisher.init(Audience::Production).await, "already");
    let elsewhere = shop.folder().join("other");
    let same_keys = Publisher::new(&elsewhere, &shop.keys());
    is_refused(same_keys.init(Audience::Production).await, "already");
    for entry in fs::read_dir(shop.keys()).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let mode = fs::metadata(shop.keys()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// The keys of root and targets stay off-line: what happens daily needs none of them.
#[tokio::test]
async fn daily_work_needs_only_its_own_keys() {
    let shop = Shop::open().await;
    let offline = ["root-1", "root-2", "root-3", "targets"];
    for key in offline {
        fs::remove_file(shop.keys().join(format!("{key}.pk8"))).unwrap();
    }
    shop.promote("1.1.0").await.unwrap();
    shop.release("1.2.0").await.unwrap();
    let renewed = shop.publisher.renew().await.unwrap();
    let renewed: Vec<&str> = renewed.iter().map(String::as_str).collect();
    assert_eq!(
        renewed,
        ["channel-stable", "releases", "snapshot", "timestamp"]
    );
    assert_eq!(shop.version().await.as_deref(), Ok("1.1.0"));
    let without = shop.publisher.add_channel("edge").await;
    assert!(
        matches!(without, Err(PublishError::NoKey(_))),
        "{without:?}"
    );
    fs::remove_file(shop.keys().join("channel-stable.pk8")).unwrap();
    let without = shop.promote("1.2.0").await;
    assert!(
        matches!(without, Err(PublishError::NoKey(_))),
        "{without:?}"
    );
    assert_eq!(shop.version().await.as_deref(), Ok("1.1.0"), "as before");
}

#[tokio::test]
async fn renewal_signs_everything_again_without_a_change() {
    let shop = Shop::open().await;
    let before = shop.read().await.unwrap();
    let renewed = shop.publisher.renew().await.unwrap();
    assert!(
        renewed.contains("root") && renewed.contains("targets"),
        "{renewed:?}"
    );
    assert!(shop.metadata("2.root.json").exists());
    let after = shop.read().await.unwrap();
    assert_eq!(after.version, before.version);
    assert!(after.fresh_until >= before.fresh_until);
    shop.promote("1.1.0").await.unwrap();
    assert_eq!(shop.version().await.as_deref(), Ok("1.1.0"));
}
