//! Attack on the PostgreSQL of a guest, by the port that its host forwards.

use std::process::{Command, Stdio};

use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::durability::{create, database};
use bellows_tests::guest_or_skip;
use bellows_tests::local_user::as_local_user;
use bellows_tests::site::Site;

const VM: &str = "target";
/// Roles of the image, and one that is not there.
const ROLES: [&str; 3] = ["postgres", "vm_monitor", "root"];
/// No password, an empty one, and guesses.
const GUESSES: [Option<&str>; 4] = [None, Some(""), Some("postgres"), Some(VM)];
/// A command that the server runs as its own user.
const PROGRAM: &str =
    "create temp table said(line text); copy said from program 'id'; select line from said";

/// Outcome of one attempt. Any session is the attacker's.
fn attempt(ip: &str, role: &str, guess: Option<&str>, sql: &str) -> Outcome {
    let mut psql = Command::new("psql");
    psql.args(["-X", "-q", "-A", "-t", "-w", "-h", ip, "-U", role])
        .args(["-d", "postgres", "-c", sql])
        .env_remove("PGPASSWORD")
        .env("HOME", "/nonexistent")
        .env("PGCONNECT_TIMEOUT", "10")
        .current_dir("/")
        .stdin(Stdio::null());
    if let Some(guess) = guess {
        psql.env("PGPASSWORD", guess);
    }
    let output = psql.output().expect("psql is on this machine");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Outcome::Succeeded(text(&output.stdout))
    } else {
        Outcome::Refused(text(&output.stderr))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_user_gets_no_session_of_a_guests_postgres() {
    if !guest_or_skip("local_user_gets_no_session_of_a_guests_postgres") {
        return;
    }
    let site = Site::fresh().await.expect("an instance");
    create(&site, VM, &[]).await.expect("a VM");
    // The owner gets a session, so the server is up and has the password.
    let owner = database(&site, VM).await.expect("a session of the owner");
    let status = site.vm(VM).await.expect("a VM").status;
    let ip = status.expect("a status").pod_ip;

    let mut report = Report::new("local user");
    let tried = as_local_user(|| {
        let each = ROLES.iter().flat_map(|role| {
            let ip = &ip;
            GUESSES.iter().flat_map(move |guess| {
                ["select current_user", PROGRAM].map(|sql| {
                    let how = format!("psql -U {role}, password {guess:?}: {sql}");
                    (how, attempt(ip, role, *guess, sql))
                })
            })
        });
        each.collect::<Vec<_>>()
    });
    for (how, outcome) in tried.expect("a local user") {
        if let Outcome::Refused(why) = &outcome {
            // The server refuses the session. The address exists.
            assert!(
                why.contains("FATAL") || why.contains("no password"),
                "{why}"
            );
        }
        report.record("W5", format!("{ip}:5432"), how, outcome);
    }
    let alive = owner.simple_query("select 1").await;
    alive.expect("the owner's session goes on");
    report.finish();
}
