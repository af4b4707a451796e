//! The same bodies, driven by chance and by the seeds of the fuzzer.

use std::path::Path;

use proptest::prelude::*;
use test_seeds::Body;

use super::*;

/// Every body under the name of its target.
const BODIES: [Body<'static>; 11] = [
    ("agent_frame", agent_frame),
    ("command_line", command_line),
    ("control_order", control_order),
    ("handshake", handshake),
    ("machine_files", machine_files),
    ("memory_events", memory_events),
    ("memory_stat", memory_stat),
    ("monitor_frame", monitor_frame),
    ("pressure_file", pressure_file),
    ("session", session),
    ("zone_file", zone_file),
];

/// Everything the fuzzer starts from holds, and each target has something to start from. What it
/// once found is there too.
#[test]
fn n38_every_seed_holds() {
    test_seeds::hold(&BODIES);
}

/// A target is a file that hands its bytes to the body of its name, and every body has one. Other
/// crates' bodies are theirs to hold.
#[test]
fn every_body_is_a_target() {
    let targets = Path::new("../fuzz/targets");
    let manifest = std::fs::read_to_string(targets.join("../Cargo.toml")).expect("a manifest");
    let mut ours = Vec::new();
    for entry in std::fs::read_dir(targets).expect("targets") {
        let path = entry.expect("a file").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(text.contains(&format!("::fuzz::{name}(data)")), "{text}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        if text.contains("vm_monitor::fuzz::") {
            ours.push(name.into_owned());
        }
    }
    ours.sort();
    assert_eq!(ours, BODIES.map(|(name, _)| name));
}

/// Words of the link with anything between them.
fn any_frame() -> impl Strategy<Value = String> {
    let kind = "(DownscaleRequest|UpscaleNotification|HealthCheck|Capabilities|InvalidMessage|InternalError|DownscaleResult|UpscaleRequest|UpscaleConfirmation|Metrics|[A-Za-z]{0,9})";
    let size = "\\{\"cpu\":[0-9]{1,2}(\\.[0-9]{1,3})?,\"mem\":[0-9]{1,19}\\}";
    let names =
        "\\[(\"(ask_details|refusal_details|observed|metrics=[0-9]{1,6}|x)\",){0,3}\"observed\"\\]";
    let member = format!(
        "\"(target|granted|wanted|smallest|observed)\":{size}|\"names\":{names}|\"(Ok|ok)\":(true|false)|\"(Status|error)\":\"[a-z ]{{0,8}}\"|\"(reason|urgency)\":\"[a-z_]{{0,9}}\"|\"load1\":[0-9.]{{1,4}}"
    );
    let member = proptest::string::string_regex(&member).expect("a pattern");
    let members = prop::collection::vec(member, 0..4).prop_map(|members| members.join(","));
    (kind, members, any::<bool>(), -9_i64..400).prop_map(|(kind, members, is_flat, id)| {
        if is_flat && members.is_empty() {
            format!(r#"{{"type":"{kind}","id":{id}}}"#)
        } else if is_flat {
            format!(r#"{{"type":"{kind}",{members},"id":{id}}}"#)
        } else {
            format!(r#"{{"type":"{kind}","content":{{{members}}},"id":{id}}}"#)
        }
    })
}

/// Lines of the kernel's files, whole, torn and strange.
fn any_file() -> impl Strategy<Value = Vec<u8>> {
    let line = "((active_anon|inactive_anon|swapcached|oom|oom_kill|oom_group_kill|workingset_refault_file|MemTotal|MemAvailable|Cached|SwapTotal|SwapFree|Active\\(anon\\)|cpu[0-9]{0,2}|some|full|avg10|[a-z_]{0,6})(:| |: |  |=)([0-9]{0,20}|[0-9.]{0,6})( kB|( [0-9]{1,4}){0,9}| avg10=[0-9.]{0,5} total=[0-9]{0,4})?\n?){0,6}";
    prop_oneof![
        4 => line.prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..200),
    ]
}

fn any_step() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => any_frame(),
        2 => "[+=^%!?~#@][0-9]{0,4}",
        1 => ".{0,30}",
    ]
}

proptest! {
    #[test]
    fn n38_frames_hold(text in prop_oneof![any_frame(), ".{0,80}".boxed()]) {
        agent_frame(text.as_bytes());
        monitor_frame(text.as_bytes());
    }

    #[test]
    fn n32_handshakes_hold(text in prop_oneof![
        "\\{\"min\":-?[0-9]{1,4},\"max\":-?[0-9]{1,20}\\}",
        "\\{\"(min|max)\":[0-3](,\"(min|max)\":[0-3.e]{1,3}){0,2}\\}",
        ".{0,80}",
    ]) {
        handshake(text.as_bytes());
    }

    #[test]
    fn n38_files_hold(data in any_file()) {
        memory_stat(&data);
        memory_events(&data);
        pressure_file(&data);
        machine_files(&data);
    }

    #[test]
    fn n38_zone_files_hold(
        text in "((Node [0-9], zone {1,4}(DMA|Normal|Movable|Device)\n)?( {2}pages free {2}[0-9]{1,20}\n)?( high {2}[0-9]{1,3}\n)?( managed {2}[0-9]{1,20}\n| nr_zone_active_file [0-9]{0,3}\n){0,2}){0,4}",
    ) {
        zone_file(text.as_bytes());
    }

    #[test]
    fn n38_command_lines_hold(
        words in prop::collection::vec(
            "(--[a-z-]{0,20}(=.{0,20})?|--(cgroup|addr|metrics-addr|pgconnstr|file-cache|file-cache-setting|hooks|log|working-set|without-cgroup)=?.{0,20}|.{0,10})",
            0..6,
        ),
    ) {
        command_line(words.join("\n").as_bytes());
    }

    #[test]
    fn control_orders_hold(
        text in prop_oneof![
            "\\{\"path\":\"[/.a-z\\\\0]{0,9}\",\"sha256\":\"([0-9a-f]{64}|[0-9a-fA-F]{0,66})\"(,\"[a-z]{1,3}\":1)?\\}",
            ".{0,80}",
        ],
    ) {
        control_order(text.as_bytes());
    }

    #[test]
    fn n33_sessions_hold(setup in any::<u8>(), steps in prop::collection::vec(any_step(), 0..30)) {
        let data = [&[setup][..], steps.join("\n").as_bytes()].concat();
        session(&data);
    }
}
