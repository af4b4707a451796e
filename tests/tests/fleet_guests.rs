//! Versions of the programs that run in guests, as the commands show them.

use std::time::Duration;

use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use serde_json::Value;

/// The VM's name.
const VM: &str = "versioned";
/// Longest time until the runner has read the guest's parts.
const PATIENCE: Duration = Duration::from_secs(60);

/// Value of a label of the monitor's `vm_monitor_build_info`.
fn label(page: &str, name: &str) -> Option<String> {
    let mut lines = page.lines();
    let line = lines.find(|line| line.starts_with("vm_monitor_build_info{"))?;
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value.to_owned())
}

/// The one guest, as `bellows fleet instances` describes it.
async fn instance(site: &Site) -> Result<Value, String> {
    let shown = site.bellows(&["fleet", "instances", "-o", "json"]).await;
    let shown = shown.map_err(|error| format!("{error:#}"))?;
    let shown: Value = serde_json::from_str(&shown).map_err(|error| error.to_string())?;
    Ok(shown["items"][0].clone())
}

/// Requirement: B07. The commands name the release and the digest that the monitor itself serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_of_running_guests_are_shown() {
    if !guest_or_skip("versions_of_running_guests_are_shown") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    let object = postgres_vm(VM, (1000, 1000, 1000), (1, 2, 4), false);
    let guest = site.boot(&object).await.unwrap();
    let (version, sha256) = wait_for("the monitor's digest", BOOT_PATIENCE, || async {
        let page = guest.page(9100, "/metrics").await;
        let page = page.map_err(|error| format!("{error:#}"))?;
        let both = label(&page, "version").zip(label(&page, "sha256"));
        both.ok_or_else(|| format!("no build_info in {page}"))
    })
    .await
    .unwrap();

    let parts = wait_for("the guest's parts", PATIENCE, || async {
        let instance = instance(&site).await?;
        let parts = &instance["parts"];
        if parts["monitor"]["version"] == version.as_str() && parts["guestd"].is_object() {
            return Ok(parts.clone());
        }
        Err(instance.to_string())
    })
    .await
    .unwrap();
    assert_eq!(parts["monitor"]["sha256"], sha256);
    for part in ["monitor", "guestd"] {
        assert_eq!(parts[part]["from"], "Image", "{parts}");
        assert_eq!(parts[part]["phase"], "Settled", "{parts}");
    }

    let counts = site.bellows(&["fleet", "-o", "json"]).await.unwrap();
    let counts: Value = serde_json::from_str(&counts).unwrap();
    assert_eq!(counts["unmanaged"], 0, "{counts}");
    let monitors = counts["versions"].as_array().unwrap();
    let mut monitors = monitors.iter().filter(|count| count["part"] == "monitor");
    let monitor = monitors.next().unwrap();
    assert_eq!(monitor["version"], version, "{counts}");
    assert_eq!(monitor["guests"], 1, "{counts}");

    let wide = site.bellows(&["get", "vms", "-o", "wide"]).await.unwrap();
    let (header, row) = wide.split_once('\n').unwrap();
    assert!(header.ends_with("MONITOR"), "{wide}");
    assert!(row.trim_end().ends_with(&version), "{wide}");
}
