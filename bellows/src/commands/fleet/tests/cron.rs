//! Environments that verify, and hooks.

use serde_json::{Value, json};

use super::{NAMESPACE, Site, fleet_of_three};

/// Days and time of the tests: 1000 s after the begin of the virtual clock, a Tuesday.
const TIMES: &str = "--days Tue,wed --start 22:30";
const DAY: u64 = 86_400;

impl Site {
    fn create_audits(&self, more: &str) -> String {
        let file = self.program("1.1.0").display().to_string();
        format!("env create audits --part monitor --type cron --to 1.1.0 --program {file} {more}")
    }

    /// Deployments of kind `Cron`: tick and status.
    fn runs(&self) -> Vec<(Value, Value)> {
        let all = self.api.list("fleetdeployments").into_iter();
        let runs = all.filter(|one| one["spec"]["kind"] == "Cron");
        let mut runs: Vec<_> = runs
            .map(|one| (one["spec"]["tick"].clone(), one["status"].clone()))
            .collect();
        runs.sort_by_key(|(tick, _)| tick["at"].to_string());
        runs
    }
}

/// Requirement: B24
#[tokio::test]
async fn environment_of_the_type_cron_verifies_and_changes_no_guest() {
    let (site, mut fleet) = fleet_of_three().await;
    site.run(&site.create_audits(TIMES))
        .await
        .expect("it is made");
    let spec = site.get("fleetenvironments", "audits")["spec"].clone();
    let cron =
        json!({"days": ["Tue", "Wed"], "start": "22:30", "timeZone": "UTC", "verb": "Verify"});
    assert_eq!((&spec["type"], &spec["cron"]), (&json!("Cron"), &cron));
    // A start verifies at once: all guests run the program of their image.
    site.run("start audits --revision audits-r1")
        .await
        .expect("it starts");
    fleet.run("audits").await;
    let first = site.get("fleetdeployments", "audits-r1-1")["status"].clone();
    assert_eq!(
        (&first["state"], &first["progress"]["failed"]),
        (&json!("Unhealthy"), &json!(3))
    );
    assert_eq!(fleet.versions(), ["0.9.0"; 3]);

    // It has no guest of its own, so another environment may roll out to them.
    site.run(&site.rollout("1.1.0")).await.expect("it starts");
    fleet.run("monitor").await;
    assert_eq!(
        (fleet.versions(), fleet.trials.len()),
        (vec!["1.1.0"; 3], 3)
    );
    fleet.wait(1000);
    fleet.run("audits").await;
    // A Wednesday: that of the week before, and the Tuesday, were missed.
    fleet.wait(8 * DAY);
    fleet.run("audits").await;
    let runs = site.runs();
    let ticks: Vec<&Value> = runs.iter().map(|(tick, _)| tick).collect();
    let due = [("2023-11-14T22:30:00Z", 0), ("2023-11-22T22:30:00Z", 2)];
    let due = due.map(|(at, missed)| json!({"at": at, "missed": missed}));
    assert_eq!(ticks, due.iter().collect::<Vec<_>>());
    for (_, status) in &runs {
        assert_eq!(
            (&status["state"], &status["progress"]["done"]),
            (&json!("Complete"), &json!(3))
        );
    }
    assert_eq!(fleet.trials.len(), 3, "nothing changed");
    let status = site.get("fleetenvironments", "audits")["status"].clone();
    let verified = &status["conditions"][0];
    assert_eq!(
        (&verified["type"], &verified["status"]),
        (&json!("Verified"), &json!("True"))
    );
    for line in [
        "history audits -o wide",
        "env show audits",
        "env show audits -o json",
        "",
        "why a",
    ] {
        site.run(line).await.expect(line);
    }
}

/// Requirement: B24
#[tokio::test]
async fn odd_orders_about_an_environment_of_the_type_cron_are_refused() {
    let (site, _) = fleet_of_three().await;
    let rows = [
        (site.create_audits(""), 64, "--days Sat,Sun --start 02:00"),
        (site.create_audits("--days Tue"), 64, "is missing"),
        (
            site.create_audits("--days Tue --start 25:00"),
            64,
            "spec.cron.start",
        ),
        (
            site.create_audits("--days Tue --start 02:00 --time-zone Mars"),
            64,
            "spec.cron.timeZone",
        ),
        (
            site.create_audits("--days Tue,Tue --start 02:00"),
            64,
            "each day once",
        ),
        (
            site.create_audits(TIMES).replace("cron", "daemon"),
            64,
            "only for that type",
        ),
        (
            site.create_audits(TIMES).replace("cron", "service"),
            64,
            "spec.type",
        ),
    ];
    for (line, code, said) in rows {
        let (exit, text) = site.refused(&line).await;
        assert_eq!(exit, code, "{line}: {text}");
        assert!(text.contains(said), "{line}: {text}");
    }
    assert_eq!(site.names("fleetenvironments"), Vec::<String>::new());
    site.run(&site.create_audits(TIMES))
        .await
        .expect("it is made");
    let (exit, text) = site.refused("plan audits").await;
    assert_eq!(exit, 1, "{text}");
    site.run("env set audits --time-zone Europe/Berlin")
        .await
        .expect("it changes");
    let cron = site.get("fleetenvironments", "audits")["spec"]["cron"].clone();
    assert_eq!(
        (&cron["timeZone"], &cron["start"]),
        (&json!("Europe/Berlin"), &json!("22:30"))
    );
}

/// Requirement: B51
#[tokio::test]
async fn hook_is_answered_by_a_command_and_its_denial_halts() {
    let (site, mut fleet) = fleet_of_three().await;
    site.run(&site.rollout("1.1.0")).await.expect("it starts");
    let (exit, text) = site.refused("hook monitor backup allow").await;
    assert_eq!(exit, 1);
    assert!(text.contains("no hook of monitor-r1"), "{text}");
    fleet.run("monitor").await;
    let (exit, text) = site.refused("hook monitor backup allow").await;
    assert!(exit == 1 && text.contains("rolls nothing out"), "{text}");

    let hooks = json!([{"name": "backup", "at": "Before"}]);
    site.api
        .edit("fleetenvironments", NAMESPACE, "monitor", |one| {
            one["spec"]["rollout"]["hooks"] = hooks.clone();
        });
    for (version, answer, state) in [
        ("1.3.0", "allow", "Complete"),
        ("1.4.0", "deny", "Unhealthy"),
    ] {
        site.run(&site.rollout(version)).await.expect("it starts");
        let line = format!("hook monitor backup {answer} --reason the-disk-is-full");
        site.run(&line).await.expect(&line);
        fleet.run("monitor").await;
        let all = site.api.list("fleetdeployments").into_iter();
        let mut of_version = all.filter(|one| one["metadata"]["annotations"].is_object());
        let last = of_version.find(|one| one["status"]["state"] == state);
        let last = last.unwrap_or_else(|| panic!("none is {state}"));
        if answer == "deny" {
            let said = last["status"]["evidence"].to_string();
            assert!(said.contains("denied it: the-disk-is-full"), "{said}");
        }
    }
    assert_eq!(fleet.versions(), ["1.3.0"; 3]);
}
