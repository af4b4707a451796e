//! A policy of sets with guests: their own load decides the number of members.

use bellows_tests::guest_or_skip;
use bellows_tests::site::BOOT_PATIENCE;

use super::*;

/// Image of the guests, as the other tests of one machine have it.
const IMAGE: &str = "bellows/postgres:15";
/// One member while the guests are idle, two while they work. It holds until figures are there.
const POLICY: &str = "return function(i)
  local load = i.sets.web.feeds.load
  if not load then return {} end
  return { sets = { web = { count = load.max > 0.6 and 2 or 1 } } }
end
";

/// Requirement: V15. Load makes a member come, and it goes when the load ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v15_members_follow_the_load_of_their_guests() {
    if !guest_or_skip("v15_members_follow_the_load_of_their_guests") {
        return;
    }
    let policies = Policies::fresh().await;
    policies.create_of(IMAGE, &["--decline", "0.1"]).await;
    let feed = ["--feed", "load=9100:host_load1"];
    policies.apply(POLICY, &feed).await.unwrap();
    // It names no set before a guest gives figures.
    let answered = |policy: &Value| policy["status"]["sets"]["shadow"]["answers"].is_u64();
    policies
        .until("an answer", ("spol", "web"), PATIENCE, answered)
        .await;
    policies.promote().await;
    let up = |count: u64| move |set: &Value| set["status"]["readyReplicas"] == count;
    policies
        .until("a member up", ("vmset", "web"), BOOT_PATIENCE, up(1))
        .await;
    // The load of the boot ends first.
    let idle = |policy: &Value| {
        let said = &policy["status"]["sets"]["live"]["sets"]["default/web"];
        said["wants"] == 1 && said["has"] == 1
    };
    policies
        .until("an idle guest", ("spol", "web"), BOOT_PATIENCE, idle)
        .await;
    let work = "sh -c 'trap : HUP; while :; do :; done' </dev/null >/dev/null 2>&1 & echo $!";
    let pid = policies.site.ssh("web-0", work, None).await.unwrap();
    let pid: u32 = pid.trim().parse().unwrap();
    let busy =
        |policy: &Value| policy["status"]["sets"]["live"]["sets"]["default/web"]["wants"] == 2;
    policies
        .until("a busy guest", ("spol", "web"), BOOT_PATIENCE, busy)
        .await;
    policies.until_count(2, PATIENCE).await;
    policies
        .until("both members up", ("vmset", "web"), BOOT_PATIENCE, up(2))
        .await;
    let end = format!("kill -9 {pid}");
    policies.site.ssh("web-0", &end, None).await.unwrap();
    policies.until_count(1, BOOT_PATIENCE).await;
    let gone = |set: &Value| set["status"]["replicas"] == 1;
    let set = policies
        .until("one member", ("vmset", "web"), BOOT_PATIENCE, gone)
        .await;
    assert_eq!(set["status"]["readyReplicas"], 1, "{set}");
}
