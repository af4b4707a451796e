use super::*;

fn rights() -> Rights {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    Rights {
        user: user.as_raw(),
        group: group.as_raw(),
        mode: 0o644,
    }
}

async fn sh(script: &str, limit: Duration) -> Result<(), CommandError> {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned);
    run_for(&argv, rights(), limit).await
}

fn failed(text: &str) -> Result<(), CommandError> {
    Err(CommandError::Failed(text.to_owned()))
}

#[tokio::test]
async fn v28_failed_check_says_its_last_line() {
    assert_eq!(sh("echo fine", LIMIT).await, Ok(()));
    let script = "echo first; echo 'bad setting in line 2' >&2; echo; exit 3";
    assert_eq!(
        sh(script, LIMIT).await,
        failed("exit status: 3: bad setting in line 2")
    );
    assert_eq!(sh("exit 1", LIMIT).await, failed("exit status: 1"));
    let none = run(&["/nonexistent/check".to_owned()], rights()).await;
    let none = none.expect_err("it is not there").to_string();
    assert!(
        none.starts_with("failed to start /nonexistent/check: "),
        "{none}"
    );
}

#[tokio::test]
async fn v28_check_has_no_environment() {
    let script = "test -z \"$HOME$USER$CARGO\" && test \"$PWD\" = / && test ! -t 0";
    assert_eq!(sh(script, LIMIT).await, Ok(()));
}

#[tokio::test]
async fn v28_hanging_check_is_ended_with_its_children() {
    let place = tempfile::tempdir().expect("a directory");
    let pid = place.path().join("pid");
    let script = format!("sleep 1000 & echo $! > {}; wait", pid.display());
    let late = sh(&script, Duration::from_secs(2)).await;
    let text = "it took more than 2 s".to_owned();
    assert_eq!(late, Err(CommandError::Late(text)));
    let child = std::fs::read_to_string(&pid).expect("a pid");
    assert_gone(child.trim()).await;
}

#[tokio::test]
async fn v28_children_of_a_check_end_with_it() {
    let place = tempfile::tempdir().expect("a directory");
    let pid = place.path().join("pid");
    let script = format!("sleep 1000 & echo $! > {}", pid.display());
    assert_eq!(sh(&script, LIMIT).await, Ok(()));
    assert_gone(std::fs::read_to_string(&pid).expect("a pid").trim()).await;
}

/// Waits until a process has ended, or is only left to be reaped by its parent.
async fn assert_gone(pid: &str) {
    for _ in 0..500 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if status.is_empty() || status.contains("State:\tZ") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("process {pid} is still there");
}

#[tokio::test]
async fn v28_check_that_writes_without_end_is_ended() {
    let failed = sh(
        "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
        LIMIT,
    )
    .await;
    let failed = failed.expect_err("it fails").to_string();
    assert!(
        failed.starts_with("it wrote more than 65536 bytes: x"),
        "{failed}"
    );
    assert!(failed.len() < 300, "{failed}");
}
