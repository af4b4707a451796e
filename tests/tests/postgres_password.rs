//! The password of a VM's PostgreSQL, from `bellows vm create` to the deletion of the VM.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bellows_tests::durability::create;
use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use bellows_tests::site::Site;

const VM: &str = "pg";
/// Longest time until a changed password is in the guest, without the kubelet's part.
const PATIENCE: Duration = Duration::from_secs(60);

/// Output of `bellows psql` with these arguments.
async fn psql(site: &Site, words: &[&str]) -> anyhow::Result<String> {
    let mut line = vec![
        "psql",
        VM,
        "--state-dir",
        site.state_dir().to_str().unwrap(),
        "--",
    ];
    line.extend(["-X", "-A", "-t"]);
    line.extend(words);
    let output = tokio::process::Command::new(bellows_tests::bellows_bin())
        .args(line)
        .stdin(std::process::Stdio::null())
        .output()
        .await?;
    anyhow::ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vm_has_a_password_of_its_own_that_can_be_changed_and_goes_with_it() {
    if !guest_or_skip("vm_has_a_password_of_its_own_that_can_be_changed_and_goes_with_it") {
        return;
    }
    let site = Site::fresh().await.unwrap();
    create(&site, VM, &[]).await.unwrap();
    let sql = "select current_user, pg_backend_pid() > 0 from pgbench_branches limit 1";
    let answer = psql(&site, &["-d", "bench", "-c", sql]).await.unwrap();
    assert_eq!(answer, "postgres|t");

    let password = site
        .bellows(&["psql", VM, "--show-password"])
        .await
        .unwrap();
    let password = password.trim();
    assert!(password.len() >= 32, "{password}");
    let plain = site.bellows(&["psql", VM, "--print-uri"]).await.unwrap();
    assert!(plain.starts_with("postgresql://postgres@127.") && !plain.contains(password));
    no_command_line_holds(&site, password).await;
    // Only root of the guest reads it there.
    let line = "su -s /bin/sh vm-monitor -c 'ls /run/bellows/postgres; cat /run/bellows/postgres/password' 2>&1; true";
    let said = site.ssh(VM, line, None).await.unwrap();
    assert!(
        said.contains("Permission denied") && !said.contains(password),
        "{said}"
    );
    let line = "logread | grep -c -e \"$(cat /run/bellows/postgres/password)\"; true";
    assert_eq!(
        site.ssh(VM, line, None).await.unwrap().trim(),
        "0",
        "the guest's log"
    );

    let patch = r#"{"stringData":{"password":"it's \"chosen\" \\x"}}"#;
    let words = [
        "patch",
        "secret",
        "postgres-pg",
        "--type=merge",
        "-p",
        patch,
    ];
    site.kubectl(&words).await.unwrap();
    wait_for("a session by the new password", PATIENCE, || async {
        psql(&site, &["-c", "select 1"])
            .await
            .map_err(|error| format!("{error:#}"))
    })
    .await
    .unwrap();
    let old = format!(
        "postgresql://postgres:{password}@{}",
        plain.trim().split('@').nth(1).unwrap()
    );
    assert!(
        tokio_postgres::connect(&old, tokio_postgres::NoTls)
            .await
            .is_err(),
        "the old one"
    );

    site.bellows(&["vm", "delete", VM, "--yes"]).await.unwrap();
    wait_for("no secret", PATIENCE, || async {
        match site.kubectl(&["get", "secret", "postgres-pg"]).await {
            Ok(found) => Err(found),
            Err(_) => Ok(()),
        }
    })
    .await
    .unwrap();
}

/// While `bellows psql` runs its session no process of this machine shows the password to others.
async fn no_command_line_holds(site: &Site, password: &str) {
    let session = psql(site, &["-c", "select pg_sleep(3)"]);
    let look = async {
        let mut sessions = 0;
        for _ in 0..15 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            for process in procfs::process::all_processes().unwrap().flatten() {
                let words = process.cmdline().unwrap_or_default().join(" ");
                assert!(!words.contains(password), "{words}");
                sessions += usize::from(words.contains("pg_sleep"));
            }
        }
        sessions
    };
    let (ended, sessions) = tokio::join!(session, look);
    ended.unwrap();
    assert!(sessions > 0, "the session was seen");
}
