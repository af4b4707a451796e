//! Publishing, channels and releases by their commands.

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use fleet::{Channels, Location, Metrics, Params, Pulses};
use prometheus_client::registry::Registry;
use protocol::fleet::KEY_REFRESH;
use serde_json::json;

use super::{NAMESPACE, Site};

impl Site {
    fn shown(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Runs `bellows fleet publish COMMAND` over the repository of the site.
    async fn publish(&self, command: &str, rest: &str) -> Result<(), String> {
        let (repository, keys) = (self.shown("repository"), self.shown("keys"));
        let line = format!("publish {command} {repository} --keys {keys} {rest}");
        self.run(&line).await.map_err(|fail| fail.to_string())
    }

    async fn publish_release(&self, version: &str) -> Result<(), String> {
        let program = self.program(version).display().to_string();
        self.publish(
            "release",
            &format!("--to {version} --program monitor={program} --independent"),
        )
        .await
    }

    /// A repository whose channel `stable` names 1.0.0, and the object `stable`.
    pub(super) async fn with_channel() -> Self {
        let site = Self::new().await;
        site.publish("init", "").await.expect("made");
        site.publish("channel", "stable").await.expect("added");
        site.publish_release("1.0.0").await.expect("released");
        site.publish("promote", "--to 1.0.0 --channel stable")
            .await
            .expect("promoted");
        let add = format!(
            "channel add stable --url file://{0} --root {0}/metadata/1.root.json",
            site.shown("repository")
        );
        site.run(&add).await.expect("added");
        site
    }
}

/// Requirement: R28
#[tokio::test]
async fn published_release_is_listed_shown_and_verified() {
    let site = Site::with_channel().await;
    for line in [
        "release list stable",
        "release list stable -o json",
        "release show stable",
        "release show stable --release 1.0.0 -o yaml",
        "release verify stable",
        "release verify stable -o json",
        "channel list -A",
        "channel list -o json",
        "channel show stable",
        "channel show default/stable -o yaml",
    ] {
        assert_eq!(site.run(line).await, Ok(()), "{line}");
    }
    let (code, text) = site.refused("release show stable --release 1.1.0").await;
    assert_eq!(code, 69, "{text}");
    assert!(text.contains("no release 1.1.0"), "{text}");
    assert_eq!(site.refused("release list other").await.0, 1);
    let targets = site.folder.path().join("repository/targets");
    for entry in std::fs::read_dir(targets).expect("targets") {
        let path = entry.expect("an entry").path();
        if path.display().to_string().contains("program-monitor") {
            std::fs::write(path, "forged").expect("written");
        }
    }
    let (code, text) = site.refused("release verify stable").await;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("signature"), "{text}");
}

/// Requirement: R12
#[tokio::test]
async fn preflight_refuses_a_control_plane_that_a_guest_does_not_understand() {
    let site = Site::with_channel().await;
    for (version, link) in [("1.1.0", "monitor=1..2"), ("2.0.0", "monitor=3..4")] {
        let program = site.program(version).display().to_string();
        let line = format!("--to {version} --program monitor={program} --link {link}");
        site.publish("release", &line).await.expect("released");
    }
    let line = |version: &str| format!("preflight stable --control-plane {version}");
    assert_eq!(site.run(&line("2.0.0")).await, Ok(()), "no guest");
    site.api.put(
        "fleetinstances",
        json!({
            "apiVersion": "fleet.bellows.dev/v1alpha1", "kind": "FleetInstance",
            "metadata": {"name": "vm-pg", "namespace": NAMESPACE},
            "spec": {"parts": {}},
            "status": {"parts": {"monitor": {"version": "1.1.0"}}},
        }),
    );
    for format in ["table", "json"] {
        assert_eq!(
            site.run(&format!("{} -o {format}", line("1.1.0"))).await,
            Ok(())
        );
    }
    let (code, text) = site.refused(&line("2.0.0")).await;
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("vm-pg") && text.contains("3 to 4"), "{text}");
    let (code, text) = site.refused(&line("3.0.0")).await;
    assert_eq!(code, 69, "{text}");
}

/// Requirement: R40
#[tokio::test]
async fn publisher_is_told_what_a_rule_refuses() {
    let site = Site::with_channel().await;
    assert_eq!(
        site.publish("promote", "--to 1.0.0 --channel stable").await,
        Ok(()),
        "again"
    );
    assert_eq!(site.publish_release("1.0.0").await, Ok(()), "again");
    for (command, rest, hint) in [
        ("promote", "--to 1.1.0 --channel stable", "no such release"),
        ("promote", "--to 1.0.0 --channel edge", "no such channel"),
        ("withdraw", "--release 1.0.0", "channel stable served it"),
        ("channel", "Stable", "its name"),
        ("init", "", "there already"),
    ] {
        let text = site.publish(command, rest).await.expect_err(command);
        assert!(text.contains(hint), "{command}: {text}");
    }
    site.publish_release("2.0.0").await.expect("released");
    site.publish("promote", "--to 2.0.0 --channel stable --critical")
        .await
        .expect("promoted");
    let text = site
        .publish("promote", "--to 1.0.0 --channel stable --critical")
        .await;
    assert!(text.expect_err("refused").contains("lower"));
    assert_eq!(site.publish("renew", "").await, Ok(()));
    let repository = site.shown("repository");
    assert_eq!(site.run(&format!("publish log {repository}")).await, Ok(()));
    assert_eq!(
        site.run(&format!("publish log {repository} -o json")).await,
        Ok(())
    );
    let inside = format!("publish renew {repository} --keys {repository}/keys");
    let (code, text) = site.refused(&inside).await;
    assert_eq!(code, 64, "{text}");
    // A file whose program prints another version than the release has.
    let other = site.program("3.0.0").display().to_string();
    let text = site
        .publish("release", &format!("--to 3.0.1 --program monitor={other}"))
        .await;
    assert!(
        text.expect_err("refused")
            .contains("it prints version 3.0.0")
    );
}

/// Requirement: R05
#[tokio::test]
async fn channel_that_breaks_a_rule_is_not_made() {
    let site = Site::with_channel().await;
    let root = format!("{}/metadata/1.root.json", site.shown("repository"));
    for (line, hint) in [
        (
            format!("channel add a --url http://example.org --root {root}"),
            "https://",
        ),
        (
            format!("channel add a --of A --url https://example.org --root {root}"),
            "spec.name",
        ),
        (
            "channel add a --url https://example.org --trust local".to_owned(),
            "file:///",
        ),
        (
            format!("channel add a --url https://example.org --root {root} --poll 1"),
            "spec.pollSeconds",
        ),
        (
            format!("channel add a --url https://example.org --root {root}.none"),
            "1.root.json",
        ),
    ] {
        let (code, text) = site.refused(&line).await;
        assert!(matches!(code, 1 | 64), "{line}: {code}");
        assert!(text.contains(hint), "{line}: {text}");
    }
    assert_eq!(site.names("fleetchannels"), ["stable"]);
    let dry = format!("channel add b --url https://example.org --root {root} --dry-run");
    assert_eq!(site.run(&dry).await, Ok(()));
    assert_eq!(site.names("fleetchannels"), ["stable"]);
}

#[tokio::test]
async fn environment_follows_a_channel_and_its_next_version() {
    let site = Site::with_channel().await;
    let program = site.program("0.9.0").display().to_string();
    let create = format!("env create m --part monitor --to 0.9.0 --program {program}");
    site.run(&create).await.expect("made");
    site.run("env set m --channel stable").await.expect("set");
    let environment = site.get("fleetenvironments", "m");
    assert_eq!(environment["spec"]["source"], json!({"channel": "stable"}));
    let lost = site.run("env create f --part guestd --channel lost").await;
    let lost = lost.expect_err("there is no such channel").to_string();
    assert!(lost.contains("lost"), "{lost}");
    let none = site.run("env create f --part guestd").await;
    let none = none.expect_err("it has no origin").to_string();
    assert!(none.contains("--channel"), "{none}");
    site.run("env create f --part guestd --channel stable")
        .await
        .expect("made");
    let follower = site.get("fleetenvironments", "f");
    assert_eq!(follower["spec"]["source"], json!({"channel": "stable"}));
    assert_eq!(follower["spec"]["part"], "guestd");
    let params = Params {
        client: site.api.client(),
        clock: Clock::new(),
        state_dir: site.folder.path().to_owned(),
        location: Location::Machine,
        stages: StageLog::new(1),
        metrics: Metrics::register(&mut Registry::default()),
        journal: None,
        pulses: Pulses::default(),
        schedules: false,
    };
    let mut channels = Channels::new(&params);
    channels.round().await.expect("a round");
    let status = site.get("fleetchannels", "stable")["status"].clone();
    assert_eq!(status["version"], "1.0.0", "{status}");
    let newest = site.get("controllerrevisions", "m-r3");
    assert_eq!(newest["data"]["resolved"]["version"], "1.0.0");
    assert_eq!(site.run("env list").await, Ok(()));
    site.run("channel refresh stable").await.expect("refreshed");
    let annotations = site.get("fleetchannels", "stable")["metadata"]["annotations"].clone();
    assert_eq!(annotations[KEY_REFRESH], "1");
    site.run("channel delete stable").await.expect("deleted");
    assert!(site.names("fleetchannels").is_empty(), "{NAMESPACE}");
}

/// Requirement: R25
#[tokio::test]
async fn image_is_published_with_its_signature_and_verified() {
    let site = Site::with_channel().await;
    let (sha256, other) = ("ab".repeat(32), "cd".repeat(32));
    let signer = test_authority::ImageSigner::new();
    let stranger = test_authority::ImageSigner::new();
    let write = |name: &str, text: &str| {
        let path = site.folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let bundle = write("agent.json", &signer.bundle(&sha256));
    let key = write("cosign.pub", &signer.public_key());
    let wrong_key = write("other.pub", &stranger.public_key());
    let empty = write("empty", "");

    let verify = |digest: &str, bundle: &str, key: &str| {
        format!("verify-image sha256:{digest} --bundle {bundle} --key {key}")
    };
    for format in ["table", "json", "yaml"] {
        let line = format!("{} -o {format}", verify(&sha256, &bundle, &key));
        assert_eq!(site.run(&line).await, Ok(()), "{line}");
    }
    for (line, code, text) in [
        (verify(&other, &bundle, &key), 1, "bundle of another image"),
        (verify(&sha256, &bundle, &wrong_key), 1, "not by the key"),
        (verify(&sha256, &empty, &key), 64, "is empty"),
        (verify(&sha256, &key, &key), 1, "cannot be read"),
        (verify(&sha256, &bundle, &bundle), 64, "PUBLIC KEY"),
        (verify(&sha256, "absent", &key), 64, "absent"),
    ] {
        let (found, said) = site.refused(&line).await;
        assert_eq!(found, code, "{line}: {said}");
        assert!(said.contains(text), "{line}: {said}");
    }

    let image = format!("--to 1.1.0 --image agent=sha256:{sha256} --independent");
    let unsigned = format!("{image} --image-key {key}");
    let refused = site.publish("release", &unsigned).await;
    let refused = refused.expect_err("it has no bundle");
    assert!(refused.contains("is not signed"), "{refused}");
    let foreign = format!("{image} --bundle agent={bundle} --image-key {wrong_key}");
    assert!(site.publish("release", &foreign).await.is_err());
    let nameless = format!("--to 1.1.0 --program monitor=x --bundle agent={bundle}");
    let refused = site.publish("release", &nameless).await;
    assert!(refused.is_err(), "a bundle of no image");
    let signed = format!("{image} --bundle agent={bundle} --image-key {key}");
    assert_eq!(site.publish("release", &signed).await, Ok(()));

    let release = "stable --release 1.1.0";
    for line in [
        format!("release show {release}"),
        format!("release verify {release} --image-key {key}"),
        format!("release verify {release} --image-key {key} -o json"),
    ] {
        assert_eq!(site.run(&line).await, Ok(()), "{line}");
    }
    let line = format!("release verify {release} --image-key {wrong_key}");
    let (code, text) = site.refused(&line).await;
    assert_eq!(code, 1, "{text}");
    let (code, text) = site.refused(&format!("release verify {release}")).await;
    assert_eq!(code, 1, "nothing was verified: {text}");
}
