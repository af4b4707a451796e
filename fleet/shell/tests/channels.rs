//! A published repository, a channel object before the shipped API server, and the environment that
//! follows it.

use std::path::PathBuf;

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use fleet::{Channels, Location, Metrics, Params, Pulses};
use fleet_release::{Audience, PLATFORM, Program, Publisher, ReleaseDraft};
use fleet_store::Programs;
use prometheus_client::registry::Registry;
use protocol::fleet::{LinkRange, ReleaseImage};
use protocol::parts::PartName;
use serde_json::{Value, json};
use tempfile::TempDir;
use test_api::TestApi;

struct Site {
    dir: TempDir,
    api: TestApi,
    publisher: Publisher,
    channels: Channels,
}

impl Site {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let api = TestApi::start().await;
        let publisher = Publisher::new(&dir.path().join("repository"), &dir.path().join("keys"));
        let root = publisher.init(Audience::Production).await.expect("made");
        let params = Params {
            client: api.client(),
            clock: Clock::new(),
            state_dir: dir.path().join("state"),
            location: Location::Machine,
            stages: StageLog::new(1),
            metrics: Metrics::register(&mut Registry::default()),
            journal: None,
            pulses: Pulses::default(),
            schedules: false,
        };
        let site = Self {
            channels: Channels::new(&params),
            dir,
            api,
            publisher,
        };
        site.publisher.add_channel("stable").await.expect("added");
        let root = std::fs::read_to_string(root).expect("read");
        site.put(
            "fleetchannels",
            json!({
                "apiVersion": "fleet.bellows.dev/v1alpha1", "kind": "FleetChannel",
                "metadata": {"name": "c", "namespace": "default"},
                "spec": {"url": site.url(), "name": "stable", "root": root},
            }),
        );
        site.put(
            "fleetenvironments",
            json!({
                "apiVersion": "fleet.bellows.dev/v1alpha1", "kind": "FleetEnvironment",
                "metadata": {"name": "m", "namespace": "default"},
                "spec": {"part": "monitor", "source": {"channel": "c"}},
            }),
        );
        site
    }

    fn put(&self, plural: &str, object: Value) {
        self.api.put(plural, object);
    }

    fn url(&self) -> String {
        format!("file://{}", self.dir.path().join("repository").display())
    }

    fn content(version: &str) -> String {
        format!("monitor {version}")
    }

    async fn release(&self, version: &str, at_least: Option<&str>) {
        let draft = ReleaseDraft {
            at_least: at_least.map(str::to_owned),
            is_independent: true,
            ..self.draft(version)
        };
        self.publisher.release(&draft).await.expect("released");
    }

    fn draft(&self, version: &str) -> ReleaseDraft {
        let file: PathBuf = self.dir.path().join(version);
        std::fs::write(&file, Self::content(version)).expect("written");
        ReleaseDraft {
            version: version.to_owned(),
            programs: vec![Program {
                part: PartName::Monitor,
                platform: PLATFORM.to_owned(),
                file,
            }],
            ..ReleaseDraft::default()
        }
    }

    async fn promote(&self, version: &str) {
        let promoted = self.publisher.promote("stable", version, false).await;
        promoted.expect("promoted");
    }

    /// Lets the channel be read at once.
    async fn read(&mut self) -> Value {
        let mut channel = self.api.list("fleetchannels").remove(0);
        let count = self.api.list("fleetdeployments").len();
        let before = channel["metadata"]["annotations"]["fleet.bellows.dev/refresh"].clone();
        let next = format!("{count} {}", before.as_str().unwrap_or_default().len() + 1);
        let value = format!("{next}{}", before.as_str().unwrap_or_default());
        channel["metadata"]["annotations"] = json!({"fleet.bellows.dev/refresh": value});
        self.put("fleetchannels", channel);
        self.channels.round().await.expect("a round");
        self.api.list("fleetchannels").remove(0)["status"].clone()
    }

    fn activate(&self, version: &str) {
        let mut environment = self.api.list("fleetenvironments").remove(0);
        environment["status"] = json!({"state": "Active", "desired": version});
        self.put("fleetenvironments", environment);
    }

    fn names(&self, plural: &str) -> Vec<String> {
        let all = self.api.list(plural);
        let names = all
            .iter()
            .filter_map(|one| one["metadata"]["name"].as_str());
        names.map(str::to_owned).collect()
    }
}

fn condition(status: &Value, name: &str) -> (String, String) {
    let all = status["conditions"].as_array().expect("conditions");
    let one = all.iter().find(|one| one["type"] == name).expect(name);
    let text = |member: &str| one[member].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

/// Requirement: R03
#[tokio::test]
async fn channel_brings_its_version_to_an_active_environment() {
    let mut site = Site::new().await;
    let empty = site.read().await;
    assert_eq!(
        condition(&empty, "Verified"),
        ("False".into(), "Unavailable".into())
    );
    assert!(site.names("controllerrevisions").is_empty());
    site.release("1.0.0", None).await;
    site.promote("1.0.0").await;
    let status = site.read().await;
    assert_eq!(status["version"], "1.0.0");
    assert_eq!(condition(&status, "Adopted").0, "True");
    assert_eq!(site.names("controllerrevisions"), ["m-r1"]);
    assert!(
        site.names("fleetdeployments").is_empty(),
        "nothing was started"
    );
    let revision = site.api.list("controllerrevisions").remove(0);
    let sha256 = revision["data"]["resolved"]["sha256"]
        .as_str()
        .expect("a hash");
    let kept = Programs::of_state_dir(&site.dir.path().join("state")).read(sha256);
    assert_eq!(kept.expect("kept"), Site::content("1.0.0").into_bytes());
    site.activate("1.0.0");
    site.read().await;
    assert!(
        site.names("fleetdeployments").is_empty(),
        "it has the version"
    );
    site.release("1.1.0", None).await;
    site.promote("1.1.0").await;
    let first = site.read().await;
    assert_eq!(first["served"].as_array().map(Vec::len), Some(2));
    assert_eq!(site.names("controllerrevisions"), ["m-r1", "m-r2"]);
    let deployments = site.names("fleetdeployments");
    assert_eq!(deployments.len(), 1);
    assert!(deployments[0].starts_with("m-r2-"), "{deployments:?}");
    site.read().await;
    assert_eq!(
        site.names("fleetdeployments"),
        deployments,
        "not tried again"
    );
}

/// The way back is a new promotion of the older release, and a new deployment.
#[tokio::test]
async fn lowered_channel_goes_back_to_the_kept_revision() {
    let mut site = Site::new().await;
    for version in ["1.0.0", "1.1.0"] {
        site.release(version, None).await;
        site.promote(version).await;
        site.read().await;
        site.activate(version);
    }
    site.promote("1.0.0").await;
    site.read().await;
    assert_eq!(site.names("controllerrevisions"), ["m-r1", "m-r2"]);
    let deployments = site.names("fleetdeployments");
    let back = deployments.iter().filter(|name| name.starts_with("m-r1-"));
    assert_eq!(back.count(), 1, "{deployments:?}");
}

/// Requirement: R43
#[tokio::test]
async fn version_that_may_not_follow_is_refused_with_the_reason() {
    let mut site = Site::new().await;
    site.release("2.0.0", None).await;
    site.promote("2.0.0").await;
    site.read().await;
    site.activate("3.0.0");
    site.release("2.1.0", None).await;
    site.promote("2.1.0").await;
    let status = site.read().await;
    assert_eq!(condition(&status, "Verified").0, "True");
    assert_eq!(
        condition(&status, "Adopted"),
        ("False".into(), "LowerMajor".into())
    );
    site.activate("2.0.0");
    site.release("2.3.0", Some("2.2.0")).await;
    site.promote("2.3.0").await;
    let status = site.read().await;
    assert_eq!(
        condition(&status, "Adopted"),
        ("False".into(), "SteppingStone".into())
    );
    assert_eq!(site.names("controllerrevisions"), ["m-r1"]);
    assert!(site.names("fleetdeployments").is_empty());
}

/// Requirement: R03
#[tokio::test]
async fn forged_program_is_neither_kept_nor_rolled_out() {
    let mut site = Site::new().await;
    site.release("1.0.0", None).await;
    site.promote("1.0.0").await;
    let targets = site.dir.path().join("repository/targets");
    for entry in std::fs::read_dir(targets).expect("targets") {
        let path = entry.expect("an entry").path();
        if path.display().to_string().contains("program-monitor") {
            std::fs::write(path, "monitor 6.6.6").expect("written");
        }
    }
    let status = site.read().await;
    assert_eq!(
        condition(&status, "Adopted"),
        ("False".into(), "Unverified".into())
    );
    assert!(site.names("controllerrevisions").is_empty());
    assert!(!site.dir.path().join("state/fleet/programs").exists());
}

/// Requirement: R11, R13
#[tokio::test]
async fn release_that_this_build_cannot_run_beside_is_not_adopted() {
    let mut site = Site::new().await;
    let monitor = |min, max| [("monitor".to_owned(), LinkRange { min, max })].into();
    let newer = ReleaseDraft {
        links: monitor(2, 2),
        ..site.draft("99.0.0")
    };
    let skewed = ReleaseDraft {
        links: monitor(90, 91),
        is_independent: true,
        ..site.draft("99.0.1")
    };
    let sound = ReleaseDraft {
        links: monitor(2, 90),
        is_independent: true,
        ..site.draft("99.0.2")
    };
    for (draft, reason) in [(newer, "Order"), (skewed, "Skew"), (sound, "")] {
        site.publisher.release(&draft).await.expect("released");
        site.promote(&draft.version).await;
        let status = site.read().await;
        let expected = if reason.is_empty() { "True" } else { "False" };
        let (state, named) = condition(&status, "Adopted");
        assert_eq!(state, expected, "{status}");
        assert!(reason.is_empty() || named == reason, "{status}");
    }
    assert_eq!(site.names("controllerrevisions"), ["m-r1"]);
}

/// Requirement: R23
#[tokio::test]
async fn release_names_the_image_of_an_agent_by_its_digest() {
    let mut site = Site::new().await;
    let mut environment = site.api.list("fleetenvironments").remove(0);
    environment["spec"]["part"] = json!("agent");
    site.put("fleetenvironments", environment);
    site.release("1.0.0", None).await;
    site.promote("1.0.0").await;
    let status = site.read().await;
    let condition_of = condition(&status, "Adopted");
    assert_eq!(condition_of, ("False".into(), "NoImage".into()), "{status}");
    let sha256 = "ab".repeat(32);
    let image = ReleaseImage {
        digest: format!("sha256:{sha256}"),
        bundle: "{}".to_owned(),
    };
    let draft = ReleaseDraft {
        version: "1.1.0".to_owned(),
        images: [("agent".to_owned(), image)].into(),
        is_independent: true,
        ..ReleaseDraft::default()
    };
    site.publisher.release(&draft).await.expect("released");
    site.promote("1.1.0").await;
    let status = site.read().await;
    assert_eq!(condition(&status, "Adopted").0, "True", "{status}");
    let revision = site.api.list("controllerrevisions").remove(0);
    assert_eq!(revision["data"]["resolved"]["sha256"], sha256);
    assert_eq!(revision["data"]["resolved"]["bundle"], "{}");
    let programs = site.dir.path().join("state/fleet/programs");
    assert!(!programs.exists(), "kubelets pull the image");
}

/// Requirement: R12
#[tokio::test]
async fn running_parts_are_compared_by_the_releases_of_all_channels() {
    let site = Site::new().await;
    for (version, min, max) in [("1.1.0", 1, 2), ("2.0.0", 3, 4)] {
        let draft = ReleaseDraft {
            links: [("monitor".to_owned(), LinkRange { min, max })].into(),
            is_independent: true,
            ..site.draft(version)
        };
        site.publisher.release(&draft).await.expect("released");
    }
    let location = Location::Machine;
    let ask = async |version: &str| {
        let version = semver::Version::parse(version).expect("a version");
        let question = fleet::Preflight {
            client: site.api.client(),
            location: &location,
            control_plane: &version,
            folder: &site.dir.path().join("preflight"),
        };
        fleet::preflight(&question).await
    };
    let none = ask("2.0.0").await.expect("findings");
    assert_eq!(
        (none.understood, none.refused.len()),
        (0, 0),
        "nothing runs"
    );
    for (name, version) in [("vm-pg", "1.1.0"), ("vm-image", "0.0.7")] {
        site.put(
            "fleetinstances",
            json!({
                "apiVersion": "fleet.bellows.dev/v1alpha1", "kind": "FleetInstance",
                "metadata": {"name": name, "namespace": "default"},
                "status": {"parts": {"monitor": {"version": version}}},
            }),
        );
    }
    let good = ask("1.1.0").await.expect("findings");
    assert_eq!((good.understood, good.unknown.len()), (1, 1));
    let bad = ask("2.0.0").await.expect("findings");
    let (part, reason) = &bad.refused[0];
    assert_eq!(
        (part.instance.as_str(), part.part.as_str()),
        ("default/vm-pg", "monitor")
    );
    assert!(reason.contains("3 to 4"), "{reason}");
    let own = ask(protocol::release::RELEASE).await.expect("findings");
    assert_eq!(own.understood, 1, "this build knows its own links");
    let absent = ask("3.0.0").await.expect_err("no release");
    assert!(
        absent.to_string().contains("no channel has release 3.0.0"),
        "{absent}"
    );
    std::fs::remove_dir_all(site.dir.path().join("repository")).expect("removed");
    let unread = ask("2.0.0").await.expect_err("no repository");
    assert!(
        unread.to_string().contains("FleetChannel default/c"),
        "{unread}"
    );
}
