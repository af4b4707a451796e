//! The driver's copy of the guests is what its last look listed. It follows no events, so lost ones
//! cost nothing, and a lost list costs a look.

use std::sync::atomic::{AtomicU64, Ordering};

use daemon_kit::clock::Clock;
use protocol::fleet::Blackout;
use protocol::time::WallTime;
use serde_json::json;
use test_api::{Fault, TestApi};

use super::{drive, put_environment, spec, vm};

/// The list that begins a look at the guests.
const LIST: &str = "GET /apis/vm.neon.tech/v1/virtualmachines";
/// Looks with a list until the copy is right.
const PASSES: usize = 2;
const CHANGES: u32 = 16;

/// An environment with a deployment that waits for the end of a blackout: it is looked at each
/// second, and changes no guest.
fn put_waiting(api: &TestApi) {
    let mut spec = spec("m", Vec::new());
    let now = Clock::new().wall().0;
    let hour = 3_600_000_000;
    spec.blackouts = vec![Blackout {
        from: WallTime(now - hour),
        to: WallTime(now + 24 * hour),
        reason: String::new(),
    }];
    let status = json!({
        "environment": {"lock": {"deployment": "m-d", "kind": "User", "epoch": 1}},
        "deployment": {"state": "InProgress", "startedAt": Clock::new().wall(), "epoch": 1},
    });
    put_environment(api, "m", &spec, &status);
    // It waits until the end of the test, and the deployment with it.
    api.put("virtualmachines", vm("waits", "m", [127, 0, 0, 1].into()));
}

/// Loses three lists of ten, and all events.
fn lose(api: &TestApi) {
    let lists = AtomicU64::new(0);
    let lose = move |_: &TestApi, _: &test_api::Call| {
        let number = lists.fetch_add(1, Ordering::Relaxed);
        let is_lost = [2, 4, 7].contains(&(number % 10));
        is_lost.then(|| (500, json!({"code": 500, "message": "lost"})))
    };
    api.always(LIST, Fault::answer(lose));
    api.always("WATCH ", Fault::Mute);
}

/// Guests in all, and those that are kept out, by what the API has.
fn truth(api: &TestApi) -> (u64, u64) {
    let all = api.list("virtualmachines").into_iter();
    let of_m = all.filter(|vm| vm["metadata"]["labels"]["env"] == "m");
    of_m.fold((0, 0), |(all, out), vm| {
        let is_out = vm["metadata"]["labels"]["fleet.bellows.dev/enrolled"] == "false";
        (all + 1, out + u64::from(is_out))
    })
}

fn told(api: &TestApi) -> Option<(u64, u64)> {
    let environment = api.get("fleetenvironments", "default", "m")?;
    let counts = &environment["status"]["counts"];
    let number = |name: &str| counts[name].as_u64().unwrap_or(0);
    Some((number("matching"), number("optedOut")))
}

/// Joins, leaves, opts out or changes its labels, in turn.
fn change(api: &TestApi, number: u32) {
    let edit = |name: &str, label: &str, value: &str| {
        api.edit("virtualmachines", "default", name, |vm| {
            vm["metadata"]["labels"][label] = json!(value);
        });
    };
    let name = |number: u32| format!("g{number}");
    match number % 4 {
        0 | 1 => {
            let made = vm(&name(number), "m", [127, 0, 0, 1].into());
            api.put("virtualmachines", made);
        }
        2 => edit(&name(number - 1), "fleet.bellows.dev/enrolled", "false"),
        _ if number % 8 == 3 => edit(&name(number - 3), "env", "other"),
        _ => api.take("virtualmachines", "default", &name(number - 3)),
    }
}

/// Requirement: B31
#[tokio::test]
async fn copy_is_right_within_two_passes_although_lists_and_events_are_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let api = TestApi::start().await;
    put_waiting(&api);
    lose(&api);
    let _driver = drive(&api, folder.path());
    let mut most = 0;
    for number in 0..CHANGES {
        let before = api.count(LIST, |_| true);
        change(&api, number);
        let wanted = truth(&api);
        let right = api.wait("the right counts", |api| {
            (told(api) == Some(wanted)).then_some(())
        });
        right.await;
        let lists = api.calls().into_iter().filter(|call| call.line == LIST);
        let passes = lists.skip(before).filter(test_api::Call::is_done).count();
        assert!(passes <= PASSES, "change {number}: {passes} passes");
        most = most.max(passes);
    }
    assert!(most > 0);
    let all = api.count(LIST, |_| true);
    let lost = all - api.count(LIST, test_api::Call::is_done);
    println!("{CHANGES} changes, {lost} of {all} lists lost, at most {most} passes");
    assert!(lost * 4 > all, "{lost} of {all} lists are lost");
    assert_eq!(api.count("WATCH ", |_| true), 0, "no copy follows events");
}
