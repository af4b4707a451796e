//! A scheduler that answers twice, late, or garbled, on real sockets: the agent may lose time by
//! it, never the order. Whatever is said, no VM is larger than what the scheduler has in its books
//! for it, and both agree in the end.

mod peers;

use peers::guest::Page;
use peers::sly::{Sly, Trick, http};
use peers::{Seen, World, address, is_patch, permits, position, units, until};
use serde_json::json;

fn patches(all: &[Seen]) -> Vec<u64> {
    let of = |seen: &Seen| match seen {
        Seen::Patch(_, slots, _) => Some(*slots),
        _ => None,
    };
    all.iter().filter_map(of).collect()
}

/// The scheduler's books say at all times at least what the VM has, and nobody asks for anything
/// before it was asked for.
fn check_books(all: &[Seen]) {
    let (mut booked, mut size) = (None, units(1));
    for (at, seen) in all.iter().enumerate() {
        match seen {
            Seen::Permit(request) => booked = Some(request.resources),
            Seen::Patch(_, slots, _) => size = units(u32::try_from(*slots).expect("is small")),
            _ => continue,
        }
        let booked = booked.unwrap_or_else(|| panic!("a patch before any permit: {all:#?}"));
        assert!(
            !size.has_field_above(booked),
            "{size} while {booked} is booked, at {at}: {all:#?}"
        );
    }
}

async fn world() -> (World, Sly) {
    let mut world = World::new().await;
    let sly = Sly::start(world.trace.clone(), address()).await;
    world.config["scheduler"]["requestPort"] = json!(sly.port);
    world.config["scheduler"]["requestTimeoutSeconds"] = json!(5);
    world.config["scheduler"]["retryFailedRequestSeconds"] = json!(1);
    world.config["scheduler"]["retryDeniedUpscaleSeconds"] = json!(1);
    world.api.put_scheduler(&sly.ip.to_string());
    (world, sly)
}

/// Answers that are none, though many of them contain what was asked.
fn garbage() -> Vec<Vec<u8>> {
    let grant = json!({ "permit": units(4) }).to_string();
    let spaces = " ".repeat(1 << 20);
    let mut short = http("200 OK", &grant);
    short.truncate(short.len() - 3);
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
    let elsewhere = "HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n";
    let two_lengths = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\ncontent-length: 2\r\n\r\n{grant}",
        grant.len()
    );
    vec![
        short,
        http("200 OK", &grant[..grant.len() - 1]),
        http("200 OK", ""),
        http("200 OK", "{}"),
        http("200 OK", r#"{"permit":null}"#),
        http("200 OK", &format!("[{grant}]")),
        http("200 OK", &format!("{grant}{grant}")),
        http("200 OK", &format!("{spaces}{grant}")),
        http("200 OK", r#"{"permit":{"vCPUs":-1,"mem":"4Gi"}}"#),
        http("200 OK", r#"{"permit":{"vCPUs":1e400,"mem":"4Gi"}}"#),
        http("200 OK", r#"{"permit":{"vCPUs":0,"mem":"0"}}"#),
        http("202 Accepted", &grant),
        two_lengths.into_bytes(),
        chunked.into(),
        elsewhere.into(),
        grant.into_bytes(),
        (0..=255).cycle().take(5_000).collect(),
        Vec::new(),
    ]
}

/// Requirement: N01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_responses_are_no_permits() {
    let (mut world, sly) = world().await;
    world.guest.set(Page::Good(0.9, 0.0));
    let says = |bytes| Trick::Says(bytes);
    let first = garbage().len();
    sly.plays(garbage().into_iter().map(says));
    sly.plays([Trick::Honest]);
    // Now there is a permit to lose, and more is asked for.
    let more = 4;
    sly.plays(garbage().into_iter().take(more).map(says));
    world.start().await;
    for n in 1..=first + 1 + more {
        world
            .trace
            .until(&format!("it has asked {n} times"), |all| {
                (permits(all).len() >= n).then_some(())
            })
            .await;
    }
    let all = world
        .trace
        .until("it grows once permitted", |all| {
            position(all, is_patch).map(|at| all[..=at].to_vec())
        })
        .await;
    let asked = permits(&all);
    for (n, got) in asked.iter().enumerate() {
        let want = if n <= first {
            (units(1), None)
        } else {
            (units(4), Some(units(1)))
        };
        assert_eq!(*got, want, "request {n}: {asked:?}");
    }
    assert_eq!(asked.len(), first + 1 + more + 1, "the first right answers");
    assert_eq!(patches(&all), [4]);
    world.stop().await;
    check_books(&world.trace.all());
}

/// Requirement: N01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicated_responses_count_once() {
    for trick in [Trick::Twice, Trick::Repeats] {
        let (mut world, sly) = world().await;
        // Heartbeats are rarer than questions after a refusal: a wrong answer is asked about again
        // before the next one.
        world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(2);
        world.config["monitor"]["retryFailedRequestSeconds"] = json!(1);
        sly.always(trick.clone());
        world.start_connected().await;
        for (load, slots) in [(0.45, 2), (0.9, 4), (0.0, 1)] {
            world.guest.set(Page::Good(load, 0.0));
            let agreed = (units(slots), Some(units(slots)));
            world
                .trace
                .until(&format!("{trick:?}: all agree on {slots}"), |all| {
                    let is_so = patches(all).last() == Some(&u64::from(slots));
                    (is_so && permits(all).last() == Some(&agreed)).then_some(())
                })
                .await;
        }
        world.stop().await;
        let all = world.trace.all();
        check_books(&all);
        if trick == Trick::Twice {
            assert_eq!(patches(&all), [2, 4, 1], "nothing was done twice");
        }
    }
}

/// Requirement: N01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_response_does_not_end_the_next_request() {
    let (mut world, sly) = world().await;
    world.config["scheduler"]["requestTimeoutSeconds"] = json!(1);
    world.config["scheduler"]["requestAtLeastEverySeconds"] = json!(600);
    // The report is answered, the wish for more late.
    sly.plays([Trick::Honest, Trick::Late]);
    world.guest.set(Page::Good(0.9, 0.0));
    world.start_connected().await;
    let all = world
        .trace
        .until("it grows", |all| {
            position(all, is_patch).map(|at| all[..=at].to_vec())
        })
        .await;
    let asked = permits(&all);
    assert!(asked.len() >= 3, "{asked:?}");
    until("the late answer is said", || sly.late() == 1).await;
    assert!(
        asked[1..]
            .iter()
            .all(|got| *got == (units(4), Some(units(1))))
    );
    // It is smaller already when it says so, and the answer to that is late, too.
    sly.plays([Trick::Late]);
    let before = world.trace.all().len();
    world.guest.set(Page::Good(0.0, 0.0));
    let told = world
        .trace
        .until("the decrease is told again", |all| {
            let told = permits(&all[before..]);
            (told.len() >= 2).then_some(told)
        })
        .await;
    until("the late answer is said", || sly.late() == 2).await;
    assert!(
        told.iter().all(|(size, _)| *size == units(1)),
        "only what it has: {told:?}"
    );
    assert_eq!(
        told[1].1,
        Some(units(1)),
        "what was told may have been given away by now"
    );
    world.stop().await;
    check_books(&world.trace.all());
    assert_eq!(patches(&world.trace.all()), [4, 1]);
}
