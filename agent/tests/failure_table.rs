//! What the agent does when something around it fails, row by row of its failure table
//! (docs/compatibility/agent.md §6.3), with the better behaviour where the deployed agent's is a
//! weakness.
//!
//! | row | test |
//! |---|---|
//! | scheduler absent or failing | `agent_without_scheduler_waits_and_still_shrinks`, `misbehaving_scheduler_never_grows_a_vm` (`peers_that_misbehave`) |
//! | scheduler denies | `partial_permit_is_used_and_requested_again` (`resize_keeps_its_order`) |
//! | monitor unreachable | `vm_without_monitor_grows_and_does_not_shrink` |
//! | monitor denies downscale | `refused_shrink_is_not_patched` (`resize_keeps_its_order`) |
//! | metrics missing at start | `vm_without_metrics_keeps_its_size_within_bounds` |
//! | metrics stop later | `stopped_metrics_hold_the_size` (`peers_that_misbehave`) |
//! | API server unreachable | `patch_is_repeated_after_an_api_server_outage`, `failed_patches_are_repeated` (`peers_that_misbehave`) |
//! | patch accepted but VM never changes | `patch_without_controller_is_not_repeated`, `ignored_patch_is_repeated_and_not_reported` |
//! | external change of spec use | `external_change_of_use_is_reverted` |
//! | agent restart | `agent_restart_during_a_patch_keeps_the_order` |
//! | VM restart | `restarted_vm_gets_a_task_for_its_new_pod` |
//! | migration | `vm_is_scaled_until_it_migrates_and_where_it_returns` |
//! | label removed, VM pod replaced | `malformed_object_affects_only_itself_until_fixed` (`peers_that_misbehave`) |
//! | scheduler answers with migrate | `nothing_is_patched_after_a_migration_is_announced` (`resize_keeps_its_order`) |
//! | initial list or watch fails at startup | `agent_starts_alone_and_reports_when_it_is_ready` (`what_it_shows`) |
//! | API conflict | `conflicting_patch_is_repeated` |
//! | watch gap | `change_missed_in_a_watch_gap_is_found_by_a_list` |

mod peers;

use peers::guest::Page;
use peers::program::Program;
use peers::{
    Seen, World, is_patch, patched_to, permits, position, units, until, until_asked_again,
};
use protocol::monitor::Allocation;
use protocol::units::Resources;
use serde_json::json;

fn granted(n: u32) -> Seen {
    Seen::Granted(Allocation {
        cpu: 0.25 * f64::from(n),
        mem: u64::from(n) << 30,
    })
}

fn two_units(world: &World) {
    world.api.change_vm("vm", |vm| {
        vm["spec"]["guest"]["cpus"]["use"] = json!("500m");
        vm["spec"]["guest"]["memorySlots"]["use"] = json!(2);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduler_gets_the_newest_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    let put = |token: &str| {
        let next = path.with_extension("next");
        std::fs::write(&next, token).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&next, mode).expect("set");
        std::fs::rename(&next, &path).expect("renamed");
    };
    let mut world = World::new().await;
    world.config["scheduler"]["tokenFile"] = json!(path);
    world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(1);
    world.config["scheduler"]["retryFailedRequestSeconds"] = json!(1);
    *world.scheduler.authorization.lock().expect("free") = Some("Bearer second".to_owned());
    put("first");
    world.start().await;
    let requests = "autoscaling_agent_scheduler_plugin_requests_total";
    world
        .until_metric(&format!("{requests}{{code=\"401\"}}"))
        .await;
    assert!(permits(&world.trace.all()).is_empty());
    put("second\n");
    until_asked_again(&world).await;
    // Without one nothing is asked, and the size is kept.
    std::fs::remove_file(&path).expect("removed");
    let none = "[error doing request: no token]";
    world
        .until_metric(&format!("{requests}{{code=\"{none}\"}}"))
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_without_monitor_grows_and_does_not_shrink() {
    let mut world = World::new().await;
    world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(1);
    world.config["monitor"]["connectionRetryMinWaitSeconds"] = json!(1);
    *world.guest.manners.greeting.lock().expect("free") = Some("hello".into());
    world.guest.set(Page::Good(0.5, 0.0));
    world.start().await;
    // Growth does not need it.
    world
        .trace
        .until("it grows", |all| position(all, patched_to(2)))
        .await;
    world.guest.set(Page::Good(0.0, 0.0));
    until("nothing is wanted, and nobody can agree", || {
        let decision = &world.state.dump()["pods"][0]["lastDecision"];
        decision["goalUnits"] == 1 && decision["boundedBy"] == json!(["monitor_absent"])
    })
    .await;
    until_asked_again(&world).await;
    assert_eq!(world.trace.count(is_patch), 1, "nothing shrinks");
    *world.guest.manners.greeting.lock().expect("free") = None;
    world
        .trace
        .until("it shrinks once it is back", |all| {
            position(all, patched_to(1))
        })
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_without_metrics_keeps_its_size_within_bounds() {
    let mut world = World::new().await;
    world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(1);
    two_units(&world);
    world.guest.set(Page::Unavailable);
    world.start_connected().await;
    until_asked_again(&world).await;
    let asked = |seen: &Seen| matches!(seen, Seen::AskedToShrink(_));
    assert_eq!(world.trace.count(asked) + world.trace.count(is_patch), 0);
    // Bounds are kept all the same.
    world.api.change_vm("vm", |vm| {
        vm["spec"]["guest"]["cpus"]["max"] = json!("250m");
        vm["spec"]["guest"]["memorySlots"]["max"] = json!(1);
    });
    world
        .trace
        .until("it comes down to its maximum", |all| {
            position(all, patched_to(1))
        })
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicting_patch_is_repeated() {
    for status in [409, 429] {
        let mut world = World::new().await;
        world.config["neonvm"]["retryFailedRequestSeconds"] = json!(1);
        world.guest.set(Page::Good(0.5, 0.0));
        world.api.fail_patches_with(2, status);
        world.start_connected().await;
        world
            .trace
            .until("the patch is made again", |all| {
                position(all, |seen| *seen == granted(2))
            })
            .await;
        assert_eq!(world.trace.count(is_patch), 1, "{status}");
        assert_eq!(world.api.size("vm"), (json!("500m"), json!(2)));
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_missed_in_a_watch_gap_is_found_by_a_list() {
    let mut world = World::new().await;
    world.guest.set(Page::Good(0.9, 0.0));
    world.start_connected().await;
    world
        .trace
        .until("it is as large as it may be", |all| {
            position(all, |seen| *seen == granted(4))
        })
        .await;
    // A smaller maximum, which no watch ever tells.
    world.api.change_vm_in_a_gap("vm", |vm| {
        vm["spec"]["guest"]["cpus"]["max"] = json!("500m");
        vm["spec"]["guest"]["memorySlots"]["max"] = json!(2);
    });
    world
        .trace
        .until("it was listed again", |all| position(all, patched_to(2)))
        .await;
    let again =
        r#"autoscaling_agent_watchers_relist_requests_total{watcher_instance="VirtualMachines"} "#;
    world.until_metric(again).await;
    assert_eq!(
        world.trace.count(|seen| matches!(seen, Seen::Connected(_))),
        1,
        "its task lived on"
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patch_is_repeated_after_an_api_server_outage() {
    let mut world = World::new().await;
    world.config["neonvm"]["requestTimeoutSeconds"] = json!(1);
    world.config["neonvm"]["retryFailedRequestSeconds"] = json!(1);
    world.api.hold_patches(true);
    world.guest.set(Page::Good(0.5, 0.0));
    world.start_connected().await;
    world
        .trace
        .until("it tries again", |all| {
            let held = all.iter().filter(|seen| **seen == Seen::PatchHeld).count();
            (held >= 2).then_some(())
        })
        .await;
    assert_eq!(
        world.trace.count(|seen| matches!(seen, Seen::Granted(_))),
        0,
        "what nobody confirmed is told to nobody"
    );
    // All of them are carried out at last, the old ones too.
    world.api.hold_patches(false);
    world
        .trace
        .until("the monitor is told", |all| {
            position(all, |seen| *seen == granted(2))
        })
        .await;
    assert_eq!(world.api.size("vm"), (json!("500m"), json!(2)));
    world.stop().await;
}

/// The object has the size, and nobody carries it out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patch_without_controller_is_not_repeated() {
    const LATENCY: &str = "autoscaling_agent_scaling_latency_seconds_count";
    let mut world = World::new().await;
    world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(1);
    world.api.without_controller(true);
    world.guest.set(Page::Good(0.5, 0.0));
    world.start_connected().await;
    let patched = world
        .trace
        .until("it is patched", |all| position(all, patched_to(2)))
        .await;
    until_asked_again(&world).await;
    until_asked_again(&world).await;
    let all = world.trace.all();
    let held = (units(2), Some(units(2)));
    let beats = &permits(&all[patched..]);
    assert!(beats.iter().all(|beat| *beat == held), "{beats:?}");
    assert_eq!(
        world.trace.count(is_patch),
        1,
        "what is set is not set again"
    );
    let metrics = world.get(|a| a.metrics, "/metrics").await;
    assert!(
        !metrics.contains(LATENCY),
        "nothing got there yet:\n{metrics}"
    );
    // Somebody carries it out at last.
    world.api.change_vm("vm", |vm| {
        vm["status"]["currentRevision"] = vm["spec"]["targetRevision"].clone();
    });
    world.until_metric(LATENCY).await;
    world.stop().await;
}

/// Something between the API server and its store takes the change back and answers well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ignored_patch_is_repeated_and_not_reported() {
    let mut world = World::new().await;
    world.config["neonvm"]["retryFailedRequestSeconds"] = json!(1);
    world.api.ignore_patches(true);
    world.guest.set(Page::Good(0.5, 0.0));
    world.start_connected().await;
    world
        .trace
        .until("it is patched again and again", |all| {
            let ignored = all.iter().filter(|seen| **seen == Seen::PatchIgnored);
            (ignored.count() >= 3).then_some(())
        })
        .await;
    assert_eq!(
        world.trace.count(|seen| matches!(seen, Seen::Granted(_))),
        0,
        "the monitor is not told of what is not there"
    );
    world.api.ignore_patches(false);
    world
        .trace
        .until("it is there, and the monitor is told", |all| {
            position(all, |seen| *seen == granted(2))
        })
        .await;
    assert_eq!(world.trace.count(is_patch), 1);
    assert_eq!(world.api.size("vm"), (json!("500m"), json!(2)));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn external_change_of_use_is_reverted() {
    let mut world = World::new().await;
    world.guest.set(Page::Good(0.5, 0.0));
    world.start_connected().await;
    world
        .trace
        .until("it has two units", |all| {
            position(all, |seen| *seen == granted(2))
        })
        .await;
    let before = world.trace.all().len();
    world.api.change_vm("vm", |vm| {
        vm["spec"]["guest"]["memorySlots"]["use"] = json!(4);
        vm["spec"]["guest"]["cpus"]["use"] = json!("1");
    });
    let all = world
        .trace
        .until("it is made true again", |all| {
            position(&all[before..], patched_to(2)).map(|at| all[before..=before + at].to_vec())
        })
        .await;
    // Until it is true again the VM may have what the object said, and the scheduler is told so:
    // that, and never more.
    let is_honest = |told: Resources| told == units(2) || told == units(4);
    assert!(
        permits(&all).iter().all(|(told, _)| is_honest(*told)),
        "{all:#?}"
    );
    world
        .trace
        .until("the scheduler is told of what is true again", |all| {
            let patched = before + position(&all[before..], patched_to(2))?;
            let told = permits(&all[patched..]);
            told.last().filter(|(told, _)| *told == units(2)).map(drop)
        })
        .await;
    assert_eq!(world.api.size("vm"), (json!("500m"), json!(2)));
    world.stop().await;
}

/// A patch that was sent by a process that is dead by now arrives whenever it likes.
///
/// Requirement: N09, N16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_restart_during_a_patch_keeps_the_order() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let mut world = World::new().await;
    world.config["dumpState"] = json!(null);
    world.api.hold_patches(true);
    world.guest.set(Page::Good(0.5, 0.0));
    let mut first = Program::start(folder.path(), &world);
    world
        .trace
        .until("it is permitted and patches", |all| {
            position(all, |seen| *seen == Seen::PatchHeld)
        })
        .await;
    first.child.kill().await.expect("is killed");
    let before = world.trace.all().len();
    let second = Program::start(folder.path(), &world);
    let first_contact = world
        .trace
        .until("the new one asks", |all| {
            permits(&all[before..]).first().copied()
        })
        .await;
    assert_eq!(
        first_contact,
        (units(1), None),
        "what the object says, and no permit: the scheduler knows the rest"
    );
    world.api.hold_patches(false);
    world
        .trace
        .until("both agree in the end", |all| {
            let last = permits(all).last().copied();
            let told = all[before..].contains(&granted(2));
            (told && last == Some((units(2), Some(units(2))))).then_some(())
        })
        .await;
    assert_eq!(world.api.size("vm"), (json!("500m"), json!(2)));
    for (told, _) in permits(&world.trace.all()[before..]) {
        assert!(!told.has_field_above(units(2)), "{told:?}");
    }
    assert_eq!(second.terminate().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_vm_gets_a_task_for_its_new_pod() {
    let mut world = World::new().await;
    world.start_connected().await;
    world
        .api
        .change_vm("vm", |vm| vm["status"]["phase"] = json!("Pending"));
    until("it is let go", || world.state.managed() == 0).await;
    world.api.change_vm("vm", |vm| {
        vm["status"]["phase"] = json!("Running");
        vm["status"]["podName"] = json!("vm-pod-2");
    });
    world
        .trace
        .until("its new pod is asked for", |all| {
            position(
                all,
                |seen| matches!(seen, Seen::Permit(request) if request.pod.name == "vm-pod-2"),
            )
        })
        .await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_is_scaled_until_it_migrates_and_where_it_returns() {
    let mut world = World::new().await;
    world.start_connected().await;
    world
        .api
        .change_vm("vm", |vm| vm["status"]["phase"] = json!("PreMigrating"));
    world.guest.set(Page::Good(0.5, 0.0));
    world
        .trace
        .until("it is scaled before it goes", |all| {
            position(all, patched_to(2))
        })
        .await;
    world
        .api
        .change_vm("vm", |vm| vm["status"]["phase"] = json!("Migrating"));
    until("it is let go", || world.state.managed() == 0).await;
    let before = world.trace.count(is_patch);
    world.guest.set(Page::Good(0.9, 0.0));
    world.api.change_vm("vm", |vm| {
        vm["status"]["phase"] = json!("Running");
        vm["status"]["node"] = json!("node-2");
    });
    // It is scaled where it runs: on the other node by another agent, here when it comes back.
    world
        .api
        .change_vm("vm", |vm| vm["status"]["node"] = json!("node-1"));
    world
        .trace
        .until("it is scaled where it runs", |all| {
            position(all, patched_to(4))
        })
        .await;
    assert_eq!(world.trace.count(is_patch), before + 1);
    world.stop().await;
}
