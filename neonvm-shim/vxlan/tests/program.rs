//! Exit codes and messages of the program. `tests/tests/overlay_network.rs` tests its effect on
//! links, in network namespaces.

use std::process::{Command, Output};

/// Output of the program with these options, without an API server.
fn says(options: &[&str]) -> Output {
    let nowhere = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_neonvm-vxlan-controller"));
    command
        .env_clear()
        .env("HOME", nowhere.path())
        .env("KUBECONFIG", nowhere.path().join("kubeconfig"))
        .args(options);
    command.output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_names_every_option() {
    let output = says(&["--help"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let help = text(&output.stdout);
    for option in [
        "--node-ip",
        "MY_NODE_IP",
        "--delete",
        "--exempt",
        "--iptables",
        "--listen",
    ] {
        assert!(help.contains(option), "{option}: {help}");
    }
}

#[test]
fn invalid_options_exit_with_64_and_are_named() {
    for (options, named) in [
        (&[][..], "--node-ip"),
        (&["--node-ip=node-1"], "node-1"),
        (
            &["--node-ip=10.0.0.1", "--exempt=10.100.0.1/16"],
            "10.100.0.1/16",
        ),
    ] {
        let output = says(options);
        assert_eq!(output.status.code(), Some(64), "{options:?}: {output:?}");
        let complaint = text(&output.stderr);
        assert!(complaint.contains(named), "{options:?}: {complaint}");
    }
}

#[test]
fn missing_api_server_exits_with_69_without_changes() {
    let output = says(&[
        "--node-ip=10.0.0.1",
        "--exempt=none",
        "--listen=127.0.0.1:0",
    ]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let log = text(&output.stdout) + &text(&output.stderr);
    assert!(log.contains("no API server is configured"), "{log}");
}
