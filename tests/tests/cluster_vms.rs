//! The whole loop in a real cluster. Our components run from their own manifests as pods of two
//! kubelet nodes. The controller creates a VM's pod, the pair of schedulers places it, the kubelet
//! runs it and the agent sizes it. The guest is real, by TCG.

#[path = "cluster_vms/attacker.rs"]
mod attacker;
#[path = "cluster_vms/baseline.rs"]
mod baseline;
#[path = "cluster_vms/claims.rs"]
mod claims;
#[path = "cluster_vms/dials.rs"]
mod dials;
#[path = "cluster_vms/faults.rs"]
mod faults;
#[path = "cluster_vms/given.rs"]
mod given;
#[path = "cluster_vms/moving.rs"]
mod moving;
#[path = "cluster_vms/network.rs"]
mod network;
#[path = "cluster_vms/overlay.rs"]
mod overlay;
#[path = "cluster_vms/plugin.rs"]
mod plugin;
#[path = "cluster_vms/quota.rs"]
mod quota;
#[path = "cluster_vms/relief.rs"]
mod relief;
#[path = "cluster_vms/rollout.rs"]
mod rollout;
#[path = "cluster_vms/rows.rs"]
mod rows;
#[path = "cluster_vms/sizes.rs"]
mod sizes;
#[path = "cluster_vms/world.rs"]
mod world;

use std::pin::Pin;
use std::process::ExitCode;

use anyhow::Result;
use bellows_tests::cases::{self, Case, Wanted};
use bellows_tests::cluster::{
    NodeKit, Programs, cert_manager_or_skip, multus_or_skip, nodes_or_skip,
};
use bellows_tests::guest_or_skip;
use world::{Others, PATIENCE, World, minimal};

/// Body of a case.
type Run = for<'a> fn(&'a World) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// Order of the cases: guests of their own first. A QEMU without KVM that has unplugged a CPU
/// seldom migrates its guest, so migrations come before shrinks.
const CASES: [(&str, Run); 30] = [
    // Requirement: N17.
    ("a_guest_with_swap_has_it_to_the_page", |world| {
        Box::pin(rows::swap(world))
    }),
    // Requirement: N17.
    ("a_disk_with_quotas_takes_no_more_than_it_may", |world| {
        Box::pin(rows::disk_quota(world))
    }),
    // Requirement: N17.
    ("a_guest_has_a_certificate_of_its_issuer", |world| {
        Box::pin(rows::tls(world))
    }),
    // Requirement: N44.
    ("a_guest_that_writes_to_other_disks_stays", |world| {
        Box::pin(rows::stays(world))
    }),
    ("disks_on_claims_outlive_pod_guest_and_vm", |world| {
        Box::pin(claims::check(world))
    }),
    (
        "guest_runs_in_a_namespace_of_level_baseline_and_is_resized",
        |world| Box::pin(baseline::check(world)),
    ),
    // Requirement: N17.
    ("a_vm_has_its_default_values_and_runs_in_a_pod", |world| {
        Box::pin(sizes::default_values(world))
    }),
    // Requirement: N17.
    (
        "a_guest_is_entered_by_its_own_key_and_has_one_daemon",
        |world| Box::pin(rows::ssh(world)),
    ),
    // Requirement: N18.
    (
        "a_guest_is_in_its_pods_network_and_reaches_nothing_of_its_runner",
        |world| Box::pin(network::check(world)),
    ),
    (
        "pod_reaches_nothing_at_our_ports_but_pages_of_metrics",
        |world| Box::pin(attacker::check(world)),
    ),
    (
        "a_guest_has_the_files_and_settings_of_its_vm_and_follows_a_secret",
        |world| Box::pin(given::check(world)),
    ),
    ("output_of_a_guest_is_in_the_log_of_its_pod", |world| {
        Box::pin(given::output_is_in_the_pods_log(world))
    }),
    ("a_guests_qemu_has_no_privilege_of_its_container", |world| {
        Box::pin(given::is_confined(world))
    }),
    // Requirement: N44.
    ("a_guest_with_a_database_moves_to_the_other_node", |world| {
        Box::pin(moving::between_nodes(world))
    }),
    // Requirement: N15.
    (
        "a_vm_that_the_scheduler_moves_is_sized_by_the_agent_of_its_new_node",
        |world| Box::pin(relief::moved_by_the_scheduler(world)),
    ),
    // Requirement: N18, N41.
    (
        "a_patch_is_seen_by_the_guest_and_requested_of_the_node",
        |world| Box::pin(sizes::patch_is_seen(world)),
    ),
    ("requests_to_a_runner_are_encrypted", |world| {
        Box::pin(network::orders_are_encrypted(world))
    }),
    // Requirement: N20.
    (
        "a_guest_in_a_pod_cannot_burn_more_than_its_quota",
        |world| Box::pin(quota::holds(world)),
    ),
    (
        "kubectl_bellows_shows_decisions_through_forwarded_ports",
        |world| Box::pin(plugin::check(world)),
    ),
    // Requirement: N17.
    ("a_requested_revision_is_reported", |world| {
        Box::pin(sizes::revisions(world))
    }),
    // Requirement: N17.
    (
        "a_vm_under_load_grows_by_itself_and_shrinks_after",
        |world| Box::pin(sizes::autoscaling(world)),
    ),
    // Requirement: N48.
    (
        "repeated_deletion_of_schedulers_does_not_delay_vms",
        |world| Box::pin(faults::schedulers_deleted(world)),
    ),
    // Requirement: N48.
    (
        "a_rollout_of_the_scheduler_ends_and_sizes_follow",
        |world| Box::pin(rollout::rolled_out(world)),
    ),
    // Requirement: N48.
    (
        "the_node_of_the_leader_is_drained_and_another_leads",
        |world| Box::pin(rollout::drained(world)),
    ),
    // Uses the connections since the first case.
    // Requirement: N49.
    (
        "every_connection_is_one_of_those_in_the_architecture",
        |world| Box::pin(dials::check(world)),
    ),
    // Requirement: N17.
    ("a_missing_image_is_reported", |world| {
        Box::pin(faults::image_that_is_not_there(world))
    }),
    // Requirement: N17.
    ("guests_run_on_while_the_api_server_is_away", |world| {
        Box::pin(faults::api_server_away(world))
    }),
    // Requirement: N17.
    (
        "restarts_after_an_ended_guest_and_a_deleted_pod_are_counted",
        |world| Box::pin(faults::restarts(world)),
    ),
    // Requirement: N17.
    ("guests_of_two_nodes_talk_over_the_overlay", |world| {
        Box::pin(overlay::between_nodes(world))
    }),
    // The last one: the node stays gone.
    // Requirement: N17.
    ("a_vm_whose_node_is_gone_runs_on_another", |world| {
        Box::pin(faults::node_gone(world))
    }),
];

fn main() -> Result<ExitCode> {
    let chosen = Wanted::from_args().choose(&CASES.map(|(name, _)| name));
    let Some(parts) = cases::shared(&chosen, parts_or_skip) else {
        return Ok(ExitCode::SUCCESS);
    };
    tokio::runtime::Runtime::new()?.block_on(async {
        let (programs, kit, others) = parts;
        let world = World::start(programs, &kit, others).await?;
        let passed = cases::run(&world, cases(&chosen), || world.explain()).await;
        Ok(ExitCode::from(u8::from(!passed)))
    })
}

/// Programs of a world.
fn parts_or_skip(test: &str) -> Option<(Programs, NodeKit, Others)> {
    if !guest_or_skip(test) {
        return None;
    }
    let (programs, kit) = nodes_or_skip(test)?;
    let others = Others {
        cert_manager: cert_manager_or_skip(test)?,
        multus: multus_or_skip(test)?,
    };
    Some((programs, kit, others))
}

/// The cases of these names.
fn cases<'a>(chosen: &[&str]) -> Vec<Case<'a, World>> {
    let chosen = CASES.iter().filter(|(name, _)| chosen.contains(name));
    let cases = chosen.map(|(name, run)| -> Case<'a, World> { (*name, Box::new(*run)) });
    cases.collect()
}
