//! Each attack on a repository, beside the same reading without it.

use std::fs;
use std::time::{Duration, Instant};

use fleet_release::{FetchLimits, Fetcher, ReadError, Repository, Scope, Trust};
use jiff::Timestamp;
use reqwest::Url;
use tough::TargetName;

use crate::forger::{CHANNEL, RELEASES, TARGETS};
use crate::server::{Fault, FileServer};
use crate::shop::{Shop, copy, program};

const DEADLINE: Duration = Duration::from_secs(60);

fn soon(seconds: i64) -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second() + seconds).unwrap()
}

#[track_caller]
fn is_unverified<T: std::fmt::Debug>(read: Result<T, ReadError>, hint: &str) {
    match read {
        Err(ReadError::Unverified(text)) => assert!(text.contains(hint), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn untouched_repository_is_read() {
    let shop = Shop::open().await;
    assert_eq!(shop.version().await.as_deref(), Ok("1.0.0"));
    assert_eq!(shop.program().await, Ok(program("1.0.0").into_bytes()));
    shop.promote("1.1.0").await.unwrap();
    assert_eq!(shop.program().await, Ok(program("1.1.0").into_bytes()));
}

/// Requirement: R03
#[tokio::test]
async fn frozen_repository_is_refused_once_its_timestamp_expires() {
    let shop = Shop::open().await;
    shop.forge_timestamp(|timestamp| timestamp.expires = soon(3));
    assert_eq!(shop.version().await.as_deref(), Ok("1.0.0"), "it is fresh");
    let begun = Instant::now();
    // The server goes on to show this state.
    loop {
        match shop.version().await {
            Ok(version) => assert_eq!(version, "1.0.0"),
            Err(ReadError::Expired(text)) => break assert!(text.contains("timestamp"), "{text}"),
            Err(other) => panic!("{other}"),
        }
        assert!(begun.elapsed() < DEADLINE, "it never expired");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn older_state_is_refused_after_a_newer_one_was_read() {
    let shop = Shop::open().await;
    let old = tempfile::tempdir().unwrap();
    copy(&shop.folder(), old.path());
    shop.promote("1.1.0").await.unwrap();
    assert_eq!(shop.version().await.as_deref(), Ok("1.1.0"));
    copy(old.path(), &shop.folder());
    is_unverified(shop.version().await, "previously fetched");
    // A reader who has seen nothing cannot notice it.
    fs::remove_dir_all(shop.verified()).unwrap();
    assert_eq!(shop.version().await.as_deref(), Ok("1.0.0"));
}

#[tokio::test]
async fn older_version_of_one_role_is_refused() {
    let shop = Shop::open().await;
    shop.promote("1.1.0").await.unwrap();
    assert_eq!(shop.version().await.as_deref(), Ok("1.1.0"));
    // Keys of snapshot and timestamp are on-line, so an attacker may have them.
    let old = shop.version_of(CHANNEL).get() - 1;
    let old = fs::read(shop.metadata(&format!("{old}.{CHANNEL}.json"))).unwrap();
    let old: serde_json::Value = serde_json::from_slice(&old).unwrap();
    shop.forge_snapshot(|snapshot| {
        let meta = snapshot.meta.get_mut(&format!("{CHANNEL}.json")).unwrap();
        meta.version = serde_json::from_value(old["signed"]["version"].clone()).unwrap();
        meta.length = None;
        meta.hashes = None;
    });
    is_unverified(shop.version().await, CHANNEL);
}

#[tokio::test]
async fn roles_of_different_states_are_refused_together() {
    let shop = Shop::open().await;
    let before = shop.version_of(CHANNEL);
    shop.promote("1.1.0").await.unwrap();
    let after = shop.version_of(CHANNEL);
    assert!(before < after);
    let old = fs::read(shop.metadata(&format!("{before}.{CHANNEL}.json"))).unwrap();
    fs::write(shop.metadata(&format!("{after}.{CHANNEL}.json")), old).unwrap();
    is_unverified(shop.version().await, CHANNEL);
}

#[tokio::test]
async fn endless_body_is_cut_at_its_bound() {
    let shop = Shop::open().await;
    for file in ["metadata/timestamp.json", "metadata/2.root.json"] {
        let server = FileServer::start(&shop.folder(), move |path| {
            (path == file).then_some(Fault::Endless)
        })
        .await;
        let read = server.read(&shop, FetchLimits::default()).await;
        assert!(read.is_err(), "{file}");
        let sent = server.sent();
        assert!(sent < 32 << 20, "{file}: {sent} bytes were taken");
        if file.contains("timestamp") {
            is_unverified(read, "more than");
        }
    }
}

#[tokio::test]
async fn role_signs_its_own_names_only() {
    let shop = Shop::open().await;
    shop.publisher.add_channel("edge").await.unwrap();
    assert_eq!(shop.version().await.as_deref(), Ok("1.0.0"));
    for (role, stolen) in [
        (RELEASES, "channel-stable.version"),
        ("channel-edge", "channel-stable.version"),
        (CHANNEL, "release-1.0.0.json"),
        (RELEASES, "channel-none.version"),
        ("channel-edge", "channel-none.version"),
        (TARGETS, "channel-none.version"),
    ] {
        shop.publisher
            .promote("edge", "1.1.0", false)
            .await
            .unwrap();
        let state = tempfile::tempdir().unwrap();
        copy(&shop.folder(), state.path());
        shop.forge(role, role, |targets| {
            let bad = b"6.6.6\n";
            let mut entry = shop.entry(RELEASES);
            entry.length = bad.len() as u64;
            entry.hashes.sha256 = sha2::Digest::finalize(sha(bad)).to_vec().into();
            let name = TargetName::new(stolen).unwrap();
            targets.targets.insert(name, entry);
        });
        match (stolen, role, shop.program().await) {
            // The role of the name has it, and the other entry counts for nothing.
            ("channel-none.version", TARGETS, read) => assert!(read.is_ok(), "its own names"),
            ("channel-none.version", _, read) => is_unverified(read, stolen),
            (_, _, read) => assert_eq!(read, Ok(program("1.0.0").into_bytes()), "{role} {stolen}"),
        }
        copy(state.path(), &shop.folder());
        fs::remove_dir_all(shop.verified()).unwrap();
    }
}

fn sha(content: &[u8]) -> sha2::Sha256 {
    sha2::Digest::new_with_prefix(content)
}

#[tokio::test]
async fn role_is_refused_with_the_key_of_another() {
    for (role, key) in [
        (CHANNEL, RELEASES),
        (RELEASES, CHANNEL),
        (TARGETS, "snapshot"),
    ] {
        let shop = Shop::open().await;
        shop.forge(role, role, |_| {});
        assert!(shop.version().await.is_ok(), "{role} with its own key");
        shop.forge(role, key, |_| {});
        is_unverified(shop.version().await, "threshold");
    }
}

#[tokio::test]
async fn root_needs_two_signatures_of_different_keys() {
    let two = ["root-1", "root-2"];
    let rows: [(&[&str], bool); 4] = [
        (&two, true),
        (&["root-1"], false),
        (&["root-1", "targets"], false),
        (&["root-1", "root-1"], false),
    ];
    for (keys, is_good) in rows {
        let shop = Shop::open().await;
        shop.forge_root(keys, |root| root.version = root.version.saturating_add(1));
        match shop.version().await {
            Ok(version) => assert!(is_good && version == "1.0.0", "{keys:?}"),
            Err(ReadError::Unverified(_)) => assert!(!is_good, "{keys:?}"),
            Err(other) => panic!("{keys:?}: {other}"),
        }
    }
}

/// Requirement: R03
#[tokio::test]
async fn threshold_of_zero_is_refused() {
    let shop = Shop::open().await;
    shop.forge_root(&["root-1", "root-2"], |root| {
        root.version = root.version.saturating_add(1);
    });
    let path = shop.metadata("2.root.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(shop.version().await.is_ok());
    fs::remove_dir_all(shop.verified()).unwrap();
    assert!(text.contains("\"threshold\":1"));
    fs::write(&path, text.replace("\"threshold\":1", "\"threshold\":0")).unwrap();
    is_unverified(shop.version().await, "");
}

/// Requirement: R03
#[tokio::test]
async fn expired_role_stops_everything() {
    for role in [TARGETS, RELEASES, CHANNEL] {
        let shop = Shop::open().await;
        assert!(shop.version().await.is_ok());
        shop.forge(role, role, |targets| targets.expires = soon(-1));
        let read = shop.version().await;
        assert!(
            matches!(read, Err(ReadError::Expired(_))),
            "{role}: {read:?}"
        );
    }
    let shop = Shop::open().await;
    shop.forge_snapshot(|snapshot| snapshot.expires = soon(-1));
    let read = shop.version().await;
    assert!(matches!(read, Err(ReadError::Expired(_))), "{read:?}");
    let shop = Shop::open().await;
    shop.forge_root(&["root-1", "root-3"], |root| {
        root.version = root.version.saturating_add(1);
        root.expires = soon(-1);
    });
    let read = shop.version().await;
    assert!(matches!(read, Err(ReadError::Expired(_))), "{read:?}");
}

#[tokio::test]
async fn truncated_file_is_refused() {
    let shop = Shop::open().await;
    let role = format!("{}.{CHANNEL}.json", shop.version_of(CHANNEL));
    let files = [
        shop.metadata("timestamp.json"),
        shop.metadata(&role),
        shop.target("release-1.0.0.json"),
        shop.target(&format!(
            "program-monitor-1.0.0-{}",
            fleet_release::PLATFORM
        )),
        shop.target("channel-stable.version"),
    ];
    for path in files {
        let whole = fs::read(&path).unwrap();
        for length in [0, whole.len() / 2, whole.len() - 2] {
            fs::write(&path, &whole[..length]).unwrap();
            is_unverified(shop.program().await, "");
        }
        fs::write(&path, &whole).unwrap();
        assert!(
            shop.program().await.is_ok(),
            "{} is whole again",
            path.display()
        );
    }
}

/// Requirement: R03
#[tokio::test]
async fn other_content_under_a_signed_name_is_refused() {
    let shop = Shop::open().await;
    let path = shop.target(&format!(
        "program-monitor-1.0.0-{}",
        fleet_release::PLATFORM
    ));
    let bad = program("6.6.6").into_bytes();
    assert_eq!(bad.len(), fs::read(&path).unwrap().len());
    fs::write(&path, bad).unwrap();
    is_unverified(shop.program().await, "");
    assert_eq!(
        shop.version().await.as_deref(),
        Ok("1.0.0"),
        "the rest holds"
    );
    fs::write(shop.target("channel-stable.version"), "1.1.0\n").unwrap();
    is_unverified(shop.version().await, "");
}

#[tokio::test]
async fn replaced_keys_stay_replaced_when_newer_roots_are_hidden() {
    let shop = Shop::open().await;
    let old = tempfile::tempdir().unwrap();
    copy(&shop.folder(), old.path());
    // The publisher takes a new key for the timestamp, as after a theft.
    let stolen = shop.keys().join("timestamp.pk8");
    let kept = fs::read(&stolen).unwrap();
    fs::copy(shop.keys().join("snapshot.pk8"), &stolen).unwrap();
    shop.forge_root(&["root-1", "root-2"], |root| {
        root.version = root.version.saturating_add(1);
        let ids = root.roles[&tough::schema::RoleType::Snapshot]
            .keyids
            .clone();
        let role = root.roles.get_mut(&tough::schema::RoleType::Timestamp);
        role.unwrap().keyids = ids;
    });
    shop.forge_timestamp(|_| {});
    assert_eq!(shop.version().await.as_deref(), Ok("1.0.0"));
    // The thief hides the new root, and signs by the old key.
    fs::remove_file(shop.metadata("2.root.json")).unwrap();
    fs::write(&stolen, kept).unwrap();
    shop.forge_timestamp(|_| {});
    is_unverified(shop.version().await, "threshold");
    fs::remove_dir_all(shop.verified()).unwrap();
    assert!(shop.version().await.is_ok(), "a reader without a memory");
}

/// Metadata with 100,000 targets is above the bound of metadata, though its keys sign it.
#[tokio::test]
async fn metadata_of_too_many_targets_is_refused() {
    let shop = Shop::open().await;
    shop.forge(RELEASES, RELEASES, |targets| {
        let entry = targets.targets.values().next().unwrap().clone();
        for number in 0..100_000 {
            let name = TargetName::new(format!("program-{number}")).unwrap();
            targets.targets.insert(name, entry.clone());
        }
    });
    is_unverified(shop.version().await, "more than");
}

/// A signed length does not lift the bound of a text.
#[tokio::test]
async fn signed_text_above_its_bound_is_not_read() {
    let shop = Shop::open().await;
    shop.forge(CHANNEL, CHANNEL, |targets| {
        let name = TargetName::new("channel-stable.version").unwrap();
        targets.targets.get_mut(&name).unwrap().length = 1 << 20;
    });
    is_unverified(shop.version().await, "above 65");
}

#[tokio::test]
async fn keys_for_trying_are_refused_in_a_cluster() {
    let shop = Shop::empty(fleet_release::Audience::Dev).await;
    let server = FileServer::start(&shop.folder(), |_| None).await;
    let (root, verified) = (shop.root(), shop.verified());
    let open = async |scope| {
        let trust = Trust::Tuf {
            root: &root,
            verified: &verified,
        };
        Repository::open(
            &server.fetcher(FetchLimits::default()),
            &server.url(),
            trust,
            scope,
        )
        .await
    };
    let refused = open(Scope::Cluster { allow_dev: false }).await;
    assert!(matches!(refused, Err(ReadError::Refused(_))), "{refused:?}");
    assert!(open(Scope::Cluster { allow_dev: true }).await.is_ok());
    assert!(open(Scope::Machine).await.is_ok());
}

#[tokio::test]
async fn folder_without_signatures_is_for_its_user_on_one_machine() {
    use std::os::unix::fs::PermissionsExt as _;

    let shop = Shop::open().await;
    let fetcher = crate::shop::fetcher();
    let open = async |url: &Url, scope| Repository::open(&fetcher, url, Trust::Local, scope).await;
    let local = open(&shop.url(), Scope::Machine).await.unwrap();
    assert_eq!(
        local.channel("stable").await.unwrap().version.to_string(),
        "1.0.0"
    );
    let cluster = open(&shop.url(), Scope::Cluster { allow_dev: true }).await;
    assert!(matches!(cluster, Err(ReadError::Refused(_))), "{cluster:?}");
    let web = open(&Url::parse("https://127.0.0.1/x").unwrap(), Scope::Machine).await;
    assert!(matches!(web, Err(ReadError::Refused(_))), "{web:?}");
    let open_to_all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(shop.folder().join("targets"), open_to_all).unwrap();
    let shared = open(&shop.url(), Scope::Machine).await;
    assert!(matches!(shared, Err(ReadError::Refused(_))), "{shared:?}");
}

#[test]
fn certificate_that_is_none_is_refused() {
    crate::shop::install_provider();
    assert!(Fetcher::new(FetchLimits::default(), &[b"-----BEGIN CERTIFICATE-----\nx"]).is_err());
}
