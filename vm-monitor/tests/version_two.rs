//! Version 2 of the link over real sockets.

mod harness;

use harness::{Agent, Files, GIB, Guest, MIB, soon};
use protocol::monitor::{AgentBody, Allocation, MonitorBody};
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, Capabilities, MonitorBodyV2, RefusalReason, SYSTEMD_TIMER, Schedule,
};
use protocol::parts::is_from_package;
use protocol::release::RELEASE;
use protocol::time::Span;
use vm_monitor::Config;

fn all() -> Capabilities {
    Capabilities::all(Span::from_millis(500))
}

#[tokio::test]
async fn n30_a_request_carries_its_reason_and_the_size_wanted() {
    let guest = Guest::start().await;
    let mut agent = Agent::connect_v2(guest.addr, all()).await;
    guest.settle(100 * MIB).await;
    guest.files.set_usage(3600 * MIB);
    let asked = agent
        .frame_where(|frame| matches!(frame.body, MonitorBodyV2::Asked(_)))
        .await;
    let MonitorBodyV2::Asked(asked) = asked else {
        panic!("{asked:?}");
    };
    let wanted = asked.wanted.expect("a size");
    assert!(
        (wanted.cpu - 2.0).abs() < f64::EPSILON && wanted.mem > 4 * GIB,
        "{wanted:?}"
    );
    assert!(asked.urgency.is_some());
    guest.stop().await;
}

/// Requirements: R19, R20
#[tokio::test]
async fn schedule_of_the_agent_is_written_to_its_file_and_stays_over_a_cut() {
    let files = Files::new();
    let path = files.proc_root().with_file_name("schedule");
    let config = Config {
        schedule: Some(path.clone()),
        ..files.config()
    };
    let guest = Guest::with(files, config).await;
    let capabilities = Capabilities {
        schedule: true,
        ..Capabilities::default()
    };
    let mut agent = Agent::connect_v2(guest.addr, capabilities).await;
    let first = agent.frame_v2().await;
    let MonitorBodyV2::ScheduleRequest(request) = first.body else {
        panic!("{first:?}");
    };
    assert_eq!(request.version, RELEASE);
    assert_eq!(request.kind, SYSTEMD_TIMER);
    let page = guest.page("/metrics", 200).await;
    assert_eq!(is_from_package(&page), Some(true), "an updater reads it");
    let schedule = |spec: &str, id| {
        let (spec, valid_s) = (spec.to_owned(), 21_600);
        let body = AgentBodyV2::Schedule(Schedule { spec, valid_s });
        AgentFrameV2 { body, id }.encode()
    };
    let spec = "Sat,Sun *-*-* 02,03:00/20:00 UTC\n*-*-* 04:00:00 UTC";
    agent.send_text(&schedule(spec, first.id)).await;
    // What comes next is answered after it.
    assert!(agent.is_alive().await);
    assert_eq!(std::fs::read_to_string(&path).expect("written"), spec);
    drop(agent);
    let mut agent = Agent::connect_v2(guest.addr, capabilities).await;
    assert_eq!(std::fs::read_to_string(&path).expect("kept"), spec);
    let again = agent.frame_v2().await;
    assert!(matches!(again.body, MonitorBodyV2::ScheduleRequest(_)));
    agent.send_text(&schedule("", again.id)).await;
    assert!(agent.is_alive().await);
    assert!(!path.exists(), "there is no schedule any more");
    guest.stop().await;
}

#[tokio::test]
async fn n27_n35_a_refusal_carries_the_size_that_would_do() {
    let guest = Guest::start().await;
    let mut agent = Agent::connect_v2(guest.addr, all()).await;
    guest.settle(2000 * MIB).await;
    let target = Allocation { cpu: 0.5, mem: GIB };
    let id = agent.ask(AgentBody::DownscaleRequest { target }).await;
    let answer = agent.frame_where(|frame| frame.id == id).await;
    let MonitorBodyV2::Refused(refused) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(refused.reason, RefusalReason::InUse);
    let target = refused.smallest.expect("a size");
    let id = agent.ask(AgentBody::DownscaleRequest { target }).await;
    let answer = agent.frame_where(|frame| frame.id == id).await;
    let approved = MonitorBodyV2::Plain(MonitorBody::DownscaleResult {
        ok: true,
        status: String::new(),
    });
    assert_eq!(
        std::mem::discriminant(&answer),
        std::mem::discriminant(&approved),
        "{answer:?}"
    );
    guest.stop().await;
}

#[tokio::test]
async fn n28_n36_a_growth_is_confirmed_when_the_guest_sees_it() {
    let guest = Guest::start().await;
    let mut agent = Agent::connect_v2(guest.addr, all()).await;
    let granted = Allocation {
        cpu: 3.5,
        mem: 8 * GIB,
    };
    let id = agent.ask(AgentBody::UpscaleNotification { granted }).await;
    guest
        .state_when("the growth is waited for", |state| state["waiting"] == 1)
        .await;
    guest.files.set_machine_total(8 * GIB - 200 * MIB);
    guest.files.set_cpus(4);
    let answer = agent.frame_where(|frame| frame.id == id).await;
    let MonitorBodyV2::Confirmed { observed } = answer else {
        panic!("{answer:?}");
    };
    assert!((observed.cpu - 4.0).abs() < f64::EPSILON);
    assert_eq!(observed.mem, 8 * GIB - 200 * MIB);
    let pushed = agent
        .frame_where(|frame| matches!(frame.body, MonitorBodyV2::Metrics(_)))
        .await;
    let MonitorBodyV2::Metrics(metrics) = pushed else {
        panic!("{pushed:?}");
    };
    assert_eq!(metrics.guest, Some(observed));
    assert_eq!(metrics.load1, Some(0.26));
    guest.stop().await;
}

#[tokio::test]
async fn n36_a_guest_that_does_not_grow_says_what_it_sees() {
    let guest = Guest::start().await;
    let mut agent = Agent::connect_v2(guest.addr, all()).await;
    let granted = Allocation {
        cpu: 1.0,
        mem: 8 * GIB,
    };
    let id = agent.ask(AgentBody::UpscaleNotification { granted }).await;
    let answer = agent.frame_where(|frame| frame.id == id).await;
    let MonitorBodyV2::Confirmed { observed } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(observed.mem, 4 * GIB);
    guest.stop().await;
}

#[tokio::test]
async fn n02_pushed_metrics_come_at_their_period() {
    let guest = Guest::start().await;
    let mut agent = Agent::connect_v2(guest.addr, all()).await;
    for _ in 0..3 {
        let pushed = agent.frame_v2().await;
        let MonitorBodyV2::Metrics(metrics) = pushed.body else {
            panic!("{pushed:?}");
        };
        assert_eq!(pushed.id % 2, 1);
        let stalls = metrics.machine_stalls.expect("PSI");
        assert_eq!((stalls.some_us, stalls.full_us), (77, 5));
        // This kernel has no schedstat.
        assert_eq!(metrics.runnable_load1, None);
    }
    guest.stop().await;
}

fn live_tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

/// Memory of this process: the monitor and all its agents.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count()
}

#[tokio::test]
async fn n37_ten_thousand_reconnects_leave_nothing_behind() {
    let guest = Guest::start().await;
    let mut last = Agent::connect_v2(guest.addr, all()).await;
    let (before, tasks) = (open_descriptors(), live_tasks());
    let mut resident = 0;
    for n in 0..10_000 {
        // By then everything that is allocated once has been.
        if n == 1000 {
            resident = resident_bytes();
        }
        // The one before ends in every way there is: dropped, replaced, in the middle of a request.
        let mut next = match n % 2 {
            0 => Agent::connect(guest.addr).await,
            _ => Agent::connect_v2(guest.addr, Capabilities::default()).await,
        };
        if n % 3 == 1 {
            let target = Allocation { cpu: 1.0, mem: GIB };
            let _ = next.ask(AgentBody::DownscaleRequest { target }).await;
        }
        last = next;
    }
    let state = guest
        .state_when("all are counted", |state| {
            state["counters"]["connections"] == 10_001
        })
        .await;
    assert_eq!(state["counters"]["handshake_failures"]["too_many"], 0);
    soon("the old ones are gone", async {
        // The page that asked has a descriptor of its own on either side.
        while open_descriptors() > before + 4 || live_tasks() > tasks + 4 {
            let _ = guest.page("/healthz", 200).await;
        }
    })
    .await;
    assert!(last.is_alive().await);
    // A kilobyte left behind by each connection would be nine times as much.
    let more = resident_bytes().saturating_sub(resident);
    assert!(more < MIB, "{more} bytes more after 9,000 connections");
    guest.stop().await;
}
