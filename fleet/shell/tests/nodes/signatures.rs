//! Images that are used only if the key of images signed them.

use fleet_signatures::ImageKey;
use serde_json::json;
use test_api::TestApi;
use test_authority::ImageSigner;

use super::{AGENT, BAD, GOOD, Played, SYSTEM, drive, drive_with};

/// The image of a release without a sound signature reaches no node. A release that is signed does.
///
/// Requirement: R25
#[tokio::test]
async fn image_without_its_signature_touches_no_pod() {
    let folder = tempfile::tempdir().expect("a folder");
    let played = Played::start(2).await;
    let (signer, other) = (ImageSigner::new(), ImageSigner::new());
    let key = ImageKey::parse(&signer.public_key()).expect("a key");
    let rows = [
        (1, String::new(), "is not signed"),
        (
            2,
            other.bundle(&GOOD.repeat(64)),
            "not by the key of images",
        ),
        (3, signer.bundle(&BAD.repeat(64)), "bundle of another image"),
    ];
    let before = played.api.get("daemonsets", SYSTEM, AGENT);
    let driver = drive_with(&played, folder.path(), Some(key), None);
    for (number, bundle, why) in rows {
        played.start_signed(number, GOOD, bundle);
        let name = format!("agents-{number}");
        let what = format!("the gate of {name}");
        let blocked = played.until(&what, |api| {
            let deployment = api.get("fleetdeployments", SYSTEM, &name)?;
            let status = &deployment["status"];
            (status["blockedBy"]["gate"] == "signature").then(|| status.clone())
        });
        let blocked = blocked.await;
        assert_eq!(blocked["state"], "Blocked", "{blocked}");
        let detail = blocked["blockedBy"]["detail"].to_string();
        assert!(detail.contains(why), "{detail}");
        let event = played.until("its event", |api| {
            let events = api.list("events");
            let mut of_it = events.into_iter();
            of_it.find(|one| {
                one["involvedObject"]["name"] == json!(name) && one["reason"] == "ImageRefused"
            })
        });
        let event = event.await;
        assert_eq!(event["type"], "Warning", "{event}");
        assert_eq!(event["involvedObject"]["kind"], "FleetDeployment");
        assert!(event["message"].to_string().contains(why), "{event}");
    }
    assert_eq!(played.api.get("daemonsets", SYSTEM, AGENT), before);
    assert_eq!(played.restarted(), Vec::<String>::new());
    let events = played.api.list("events").into_iter();
    let refused = events.filter(|one| one["reason"] == "ImageRefused").count();
    assert_eq!(refused, 3, "one for each deployment");
    let condition = |api: &TestApi, status: &str| {
        let environment = api.get("fleetenvironments", SYSTEM, "agents")?;
        let all = environment["status"]["conditions"].clone();
        let mut all = all.as_array()?.iter();
        let verified = all.find(|one| one["type"] == "ImagesVerified")?;
        (verified["status"] == status).then(|| verified.clone())
    };
    let is_refused = played.until("the condition", |api| condition(api, "False"));
    assert_eq!(is_refused.await["reason"], "ImageRefused");

    played.start_signed(4, GOOD, signer.bundle(&GOOD.repeat(64)));
    let status = played.ended("agents-4").await;
    assert_eq!(status["state"], "Complete", "{status}");
    played.all_run(GOOD);
    let is_signed = played.until("the condition", |api| condition(api, "True"));
    assert_eq!(is_signed.await["reason"], "Signed");
    drop(driver);
    let _driver = drive(&played, folder.path());
    let unknown = played.until("the condition without a key", |api| {
        condition(api, "False").filter(|one| one["reason"] == "NoKey")
    });
    assert!(
        unknown.await["message"]
            .to_string()
            .contains("fleet.images.key")
    );
}
