//! Parts of a real guest on trial: good programs are kept, bad ones go back by themselves, and the
//! guest's work goes on.

#![expect(clippy::unwrap_used, reason = "tests")]

use bellows_tests::guest_or_skip;
use bellows_tests::guest_parts::{GuestParts, PATIENCE};
use bellows_tests::image::guest_program;
use bellows_tests::patience::wait_for;
use bellows_tests::publisher::sha256_of;
use bellows_tests::site::{BOOT_PATIENCE, postgres_vm};
use hyper::Method;
use protocol::notice::RUNNER_ROUTE;
use protocol::parts::{PartName, PartPhase, PartSource, PartState};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

const VM: &str = "parts";
/// Length of the trials, seconds.
const TRIAL_S: u64 = 30;
/// Longest time from the end of a trial until the former program runs, seconds.
const RETURN_S: u64 = 10;
/// Times that the kept monitor is killed. It pauses for 5 s between two starts.
const KILLS: u64 = 6;

/// The guest, and what tests see of it from outside.
struct World(GuestParts);

impl World {
    async fn boot() -> Self {
        let object = postgres_vm(VM, (1000, 1000, 1000), (1, 1, 1), false);
        Self(GuestParts::boot(&object, TRIAL_S).await.unwrap())
    }

    /// What a login shell of the guest prints before its first command, and that.
    async fn login(&self) -> String {
        let commands = self.0.site.state_dir().join("commands");
        std::fs::write(&commands, "echo in\n").unwrap();
        let shell = wait_for("a login", PATIENCE, || async {
            let shell = self.0.site.ssh_shell(VM, &commands).await;
            shell.map_err(|error| format!("{error:#}"))
        });
        shell.await.unwrap()
    }

    /// Begins a shell on the guest's console, and waits until it has shown a text.
    async fn console_shows(&self, text: &str) {
        let folder = self.0.site.rundir(VM).await.unwrap();
        let mut console = UnixStream::connect(folder.join("console.sock"))
            .await
            .unwrap();
        console.write_all(b"\n").await.unwrap();
        wait_for(text, PATIENCE, || async {
            let log = std::fs::read(folder.join("console.log")).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).into_owned();
            log.contains(text).then_some(()).ok_or(log)
        })
        .await
        .unwrap();
    }

    /// Brings a program and begins its trial. Returns the uptime of the guest before it.
    async fn attempt(&mut self, part: PartName, program: &[u8]) -> u64 {
        self.0.bring(part, program).await.unwrap();
        let uptime_s = self.0.guest.state().await.unwrap().uptime_s;
        self.0.order(part, "try").await.unwrap();
        uptime_s
    }

    /// Waits until the part is in `phase` and runs the program of `sha256`.
    async fn wait(&self, part: PartName, phase: PartPhase, sha256: &str) -> PartState {
        self.0.wait(part, phase, sha256).await.unwrap()
    }

    /// Kills the kept monitor again and again. Each time it starts from where it is kept.
    async fn comes_back_from_its_slot(&self, kept: &PartState) {
        for kill in 1..=KILLS {
            let line = "kill -9 $(cat /run/bellows/parts/monitor.pid)";
            self.0.site.ssh(VM, line, None).await.unwrap();
            let started = kept.starts + kill;
            let expected = (started, kept.from, PartPhase::Settled, &kept.sha256);
            wait_for("the monitor again", PATIENCE, || async {
                let state = self.0.part(PartName::Monitor).await;
                let state = state.map_err(|error| format!("{error:#}"))?;
                // A fleet takes a part for changed if another program stands here.
                assert_eq!(state.sha256, kept.sha256, "between two starts");
                let seen = (state.starts, state.from, state.phase, &state.sha256);
                (seen == expected).then_some(()).ok_or(format!("{state:?}"))
            })
            .await
            .unwrap();
        }
    }

    /// Waits until the part went back to `former`, within its trial and ten seconds.
    async fn goes_back(&self, part: PartName, former: &str, since_s: u64) -> PartState {
        let state = self.wait(part, PartPhase::Back, former).await;
        let took = self.0.guest.state().await.unwrap().uptime_s - since_s;
        assert!(took <= TRIAL_S + RETURN_S, "{took} s: {state:?}");
        state
    }
}

fn program(name: &str) -> Vec<u8> {
    guest_program(name).expect(name)
}

/// Requirement: R09, B05
#[tokio::test(flavor = "multi_thread")]
async fn good_parts_are_kept_and_bad_ones_go_back_while_the_guest_works_on() {
    if !guest_or_skip("good_parts_are_kept_and_bad_ones_go_back_while_the_guest_works_on") {
        return;
    }
    let (monitor, guestd) = (PartName::Monitor, PartName::Guestd);
    let mut world = World::boot().await;
    let session = wait_for("a session", BOOT_PATIENCE, || async {
        let session = world.0.guest.postgres().await;
        session.map_err(|error| format!("{error:#}"))
    });
    let session = session.await.unwrap();
    let boot = world.0.guest.state().await.unwrap().boot_id;
    let first = world.0.part(monitor).await.unwrap();
    assert_eq!(
        (first.phase, first.from),
        (PartPhase::Settled, PartSource::Image)
    );

    // The image's monitor with another hash.
    let good = [program("vm-monitor"), b"another hash".to_vec()].concat();
    let good_sha = sha256_of(&good);
    world.attempt(monitor, &good).await;
    world.wait(monitor, PartPhase::Trial, &good_sha).await;
    world.0.order(monitor, "keep").await.unwrap();
    let kept = world.wait(monitor, PartPhase::Settled, &good_sha).await;
    assert_eq!((kept.from, kept.version.as_str()), (PartSource::A, "0.1.1"));
    world.comes_back_from_its_slot(&kept).await;

    let since_s = world.attempt(monitor, &program("crashing-part")).await;
    let back = world.goes_back(monitor, &good_sha, since_s).await;
    assert!(back.reason.contains("ended with status 1"), "{back:?}");
    let refused = world.0.order(monitor, "keep").await.unwrap_err();
    assert!(format!("{refused:#}").contains("410"), "{refused:#}");

    let hanging = program("hanging-part");
    let since_s = world.attempt(monitor, &hanging).await;
    world.goes_back(monitor, &good_sha, since_s).await;

    // Without its daemon the guest goes back all the same.
    let since_s = world.attempt(monitor, &hanging).await;
    let line = "kill -STOP $(cat /run/bellows/parts/guestd.pid)";
    world.0.site.ssh(VM, line, None).await.unwrap();
    let line = format!("sleep {}", TRIAL_S + RETURN_S);
    world.0.site.ssh(VM, &line, None).await.unwrap();
    let line = "readlink /proc/$(cat /run/bellows/parts/monitor.pid)/exe";
    let runs = world.0.site.ssh(VM, line, None).await.unwrap();
    assert_eq!(
        runs.trim(),
        "/var/lib/bellows/parts/monitor/a/program",
        "{since_s}"
    );
    let line = "kill -9 $(cat /run/bellows/parts/guestd.pid)";
    world.0.site.ssh(VM, line, None).await.unwrap();
    world.wait(monitor, PartPhase::Back, &good_sha).await;

    // A guest daemon that answers nobody.
    let own = world.0.part(guestd).await.unwrap().sha256;
    let since_s = world.attempt(guestd, &hanging).await;
    world.goes_back(guestd, &own, since_s).await;

    assert_eq!(world.0.guest.state().await.unwrap().boot_id, boot);
    session.simple_query("SELECT 1").await.unwrap();
}

/// Requirement: R44
#[tokio::test(flavor = "multi_thread")]
async fn notice_is_shown_at_ssh_and_console_until_it_is_taken_away() {
    if !guest_or_skip("notice_is_shown_at_ssh_and_console_until_it_is_taken_away") {
        return;
    }
    let world = World::boot().await;
    let put = async |version: &str| {
        let body = format!(
            r#"{{"version":"{version}","since":"2026-11-30T06:00:00Z","valid_seconds":3600}}"#
        );
        world
            .0
            .sent(Method::PUT, RUNNER_ROUTE, body.into_bytes())
            .await
            .map_err(|error| format!("{error:#}"))
    };
    assert_eq!(world.login().await, "in\n");
    for hostile in ["", "1.0.0 reboot", r"1.0.0\u001b[2J", r"1.0.0\n"] {
        let refused = put(hostile).await.unwrap_err();
        assert!(refused.contains("422"), "{refused}");
    }
    assert_eq!(world.login().await, "in\n", "nothing is written");

    put("1.2.3").await.unwrap();
    let shown = world.login().await;
    let words = "This machine is about to move to a new runner, version 1.2.3, \
                 as decided at 2026-11-30T06:00:00Z.";
    assert!(
        shown.starts_with(words) && shown.ends_with("\nin\n"),
        "{shown}"
    );
    world.console_shows(words).await;

    world
        .0
        .sent(Method::DELETE, RUNNER_ROUTE, Vec::new())
        .await
        .unwrap();
    assert_eq!(world.login().await, "in\n");
}
